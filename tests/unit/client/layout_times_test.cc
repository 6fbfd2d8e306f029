#include "client/lib/layout_times.h"

#include <gtest/gtest.h>

#include "ipc/records.h"

namespace headrace::client {
namespace {

TEST(LayoutTimes, AreZeroWhereNoForwardPassWasSeen) {
  LayoutTimes times(2);
  times.BeginBackward(500);
  EXPECT_EQ(times.part(0).forward_ns, 0U);
  EXPECT_EQ(times.part(1).waited_ns, 0U);
  EXPECT_EQ(times.backward_ns(), 500);
}

TEST(LayoutTimes, GiveEachGradientTheTimeUntilTheNextIsAskedFor) {
  LayoutTimes times(3);
  times.Reach(0, 100, 0);
  times.Pause(130);  // asks for gradient 1, which comes 70 ns later
  times.Reach(1, 200, 70);
  times.Pause(250);
  times.Reach(2, 250, 0);
  times.EndForward(260);
  times.BeginBackward(1000);
  EXPECT_EQ(times.part(0).forward_ns, 30U);
  EXPECT_EQ(times.part(1).forward_ns, 50U);
  EXPECT_EQ(times.part(1).waited_ns, 70U);
  EXPECT_EQ(times.part(2).forward_ns, 10U);
}

TEST(LayoutTimes, EndTheLastPartWithTheBackwardPassWhereNobodySaidThatForwardHadEnded) {
  LayoutTimes times(1);
  times.Reach(0, 100, 0);
  times.BeginBackward(150);
  EXPECT_EQ(times.part(0).forward_ns, 50U);
}

TEST(LayoutTimes, AddUpAGradientThatIsUsedTwiceInOnePass) {
  LayoutTimes times(2);
  times.Reach(0, 0, 5);
  times.Pause(10);
  times.Reach(1, 10, 0);
  times.Pause(30);
  times.Reach(0, 37, 7);
  times.EndForward(40);
  EXPECT_EQ(times.part(0).forward_ns, 13U);
  EXPECT_EQ(times.part(0).waited_ns, 12U);
  EXPECT_EQ(times.part(1).forward_ns, 20U);
}

TEST(LayoutTimes, CountTheFirstPassAfterABackwardPassOnly) {
  LayoutTimes times(1);
  times.Reach(0, 0, 0);
  times.EndForward(10);
  times.Reach(0, 100, 0);  // evaluation
  times.EndForward(900);
  EXPECT_EQ(times.part(0).forward_ns, 10U);
  times.BeginBackward(1000);
  times.Forget(0);
  times.Reach(0, 2000, 0);
  times.EndForward(2020);
  EXPECT_EQ(times.part(0).forward_ns, 20U);
}

TEST(LayoutTimes, DoNotTakeAnEndWithoutAWaitForAPass) {
  LayoutTimes times(1);
  times.EndForward(10);
  times.Reach(0, 20, 0);
  times.EndForward(50);
  EXPECT_EQ(times.part(0).forward_ns, 30U);
}

TEST(LayoutTimes, CountTheTimeOfAWaitThatGaveUpButNoPartOfThePass) {
  LayoutTimes times(2);
  times.Reach(0, 0, 0);
  times.Pause(10);
  times.LoseTime(1, 100);
  times.Pause(110);
  times.Reach(1, 115, 5);
  times.EndForward(120);
  EXPECT_EQ(times.part(0).forward_ns, 10U);
  EXPECT_EQ(times.part(1).waited_ns, 105U);
  EXPECT_EQ(times.part(1).forward_ns, 5U);
}

TEST(LayoutTimes, StayAtTheMostThatARecordHolds) {
  LayoutTimes times(1);
  constexpr TimeNs kDay = 86400 * kSecond;
  times.Reach(0, 0, 3 * kDay);
  times.Pause(4 * kDay);
  times.Reach(0, 10 * kDay, 6 * kDay);
  times.EndForward(20 * kDay);
  EXPECT_EQ(times.part(0).forward_ns, ipc::kGradientTimeMax);
  EXPECT_EQ(times.part(0).waited_ns, ipc::kGradientTimeMax);
}

TEST(LayoutTimes, KeepAWaitOfTwelveSecondsWhole) {
  LayoutTimes times(1);
  times.Reach(0, 12 * kSecond, 12 * kSecond);
  times.EndForward(18 * kSecond);
  EXPECT_EQ(times.part(0).waited_ns, 12'000'000'000U);
  EXPECT_EQ(times.part(0).forward_ns, 6'000'000'000U);
}

TEST(LayoutTimes, StartFromNothingAfterAPost) {
  LayoutTimes times(1);
  times.Reach(0, 0, 9);
  times.EndForward(10);
  times.BeginBackward(20);
  times.Forget(0);
  EXPECT_EQ(times.part(0).forward_ns, 0U);
  EXPECT_EQ(times.part(0).waited_ns, 0U);
}

}  // namespace
}  // namespace headrace::client
