#include "transport/poll_timer.h"

#include <gtest/gtest.h>

namespace headrace::transport {
namespace {

TEST(PollTimer, LooksAtNothingWhileNothingIsOpen) {
  PollTimer pace;
  EXPECT_EQ(pace.next_ns(), kNever);
  EXPECT_FALSE(pace.OnPolled(false, false, 5));
  EXPECT_FALSE(pace.OnPolled(false, true, 6)) << "what ended was the last";
  EXPECT_EQ(pace.next_ns(), kNever);
}

TEST(PollTimer, LooksAgainAtOnceForAShortTimeAfterAPost) {
  PollTimer pace;
  pace.PollNow(1000);
  EXPECT_LE(pace.next_ns(), 1000);
  EXPECT_TRUE(pace.OnPolled(true, false, 1000));
  EXPECT_TRUE(pace.OnPolled(true, false, 1000 + PollTimer::kSpinFor - 1));
  EXPECT_FALSE(pace.OnPolled(true, false, 1000 + PollTimer::kSpinFor));
  EXPECT_EQ(pace.next_ns(), 1000 + PollTimer::kSpinFor + PollTimer::kLookEvery);
}

TEST(PollTimer, HurriesAgainWhenSomethingEnds) {
  PollTimer pace;
  pace.PollNow(0);
  EXPECT_FALSE(pace.OnPolled(true, false, kSecond));
  EXPECT_TRUE(pace.OnPolled(true, true, 2 * kSecond));
  EXPECT_TRUE(pace.OnPolled(true, false, 2 * kSecond + 1));
  EXPECT_FALSE(pace.OnPolled(true, false, 3 * kSecond));
  EXPECT_FALSE(pace.OnPolled(false, true, 4 * kSecond));
  EXPECT_EQ(pace.next_ns(), kNever);
}

}  // namespace
}  // namespace headrace::transport
