#include "service/peers/refusals.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_text.h"

namespace headrace::service {
namespace {

std::vector<PeerView> Shown(const Refusals& refusals, TimeNs now,
                            std::vector<PeerView> views = {}) {
  refusals.AddTo(views, now);
  return views;
}

TEST(Refusals, AreShownWithTheirCauseAndAge) {
  Refusals refusals;
  refusals.Note("b", "10.0.0.2:4711", false, "other lanes", kSecond);
  const auto views = Shown(refusals, 4 * kSecond);
  ASSERT_EQ(views.size(), 1U);
  EXPECT_EQ(views[0].name, "b");
  EXPECT_TRUE(views[0].refused);
  EXPECT_FALSE(views[0].connected);
  EXPECT_VARYING_TEXT(views[0].why);
}

TEST(Refusals, OfOneNodeAreOneWhateverPortItComesFrom) {
  Refusals refusals;
  refusals.Note("", "10.0.0.2:4711", false, "no certificate", 0);
  refusals.Note("", "10.0.0.2:4712", false, "another authority", 0);
  refusals.Note("", "10.0.0.3:4711", false, "no certificate", 0);
  const auto views = Shown(refusals, 0);
  ASSERT_EQ(views.size(), 2U);
  EXPECT_VARYING_TEXT(views[0].why);
}

TEST(Refusals, AreForgottenWhenTheTwoHaveMet) {
  Refusals refusals;
  refusals.Note("b", "10.0.0.2:4711", false, "other lanes", 0);
  refusals.Note("", "c:7733", true, "another authority", 0);
  refusals.Forget("b", "10.0.0.2:9");
  refusals.Forget("", "c:7733");
  EXPECT_TRUE(Shown(refusals, 0).empty());
}

TEST(Refusals, GiveWayToWhatIsConnectedAndEndWithTime) {
  Refusals refusals;
  refusals.Note("b", "10.0.0.2:4711", false, "other lanes", 0);
  const PeerView connected{.name = "b", .address = "10.0.0.2:1", .connected = true};
  EXPECT_EQ(Shown(refusals, 0, {connected}).size(), 1U);
  EXPECT_EQ(Shown(refusals, Refusals::kKept).size(), 1U);
  EXPECT_TRUE(Shown(refusals, Refusals::kKept + 1).empty());
}

TEST(Refusals, AreBounded) {
  Refusals refusals;
  for (int i = 0; i < 100; ++i) {
    refusals.Note("node" + std::to_string(i), "x:1", false, "no", 0);
  }
  const auto views = Shown(refusals, 0);
  ASSERT_EQ(views.size(), Refusals::kMax);
  EXPECT_EQ(views.back().name, "node99");
}

}  // namespace
}  // namespace headrace::service
