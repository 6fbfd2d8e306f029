#include "transport/pace.h"

#include <gtest/gtest.h>

namespace headrace::transport {
namespace {

TEST(Pace, LooksAtNothingWhileNothingIsOpen) {
  Pace pace;
  EXPECT_EQ(pace.next_ns(), kNever);
  EXPECT_FALSE(pace.Looked(false, false, 5));
  EXPECT_FALSE(pace.Looked(false, true, 6)) << "what ended was the last";
  EXPECT_EQ(pace.next_ns(), kNever);
}

TEST(Pace, LooksAgainAtOnceForAShortTimeAfterAPost) {
  Pace pace;
  pace.Hurry(1000);
  EXPECT_LE(pace.next_ns(), 1000);
  EXPECT_TRUE(pace.Looked(true, false, 1000));
  EXPECT_TRUE(pace.Looked(true, false, 1000 + Pace::kSpinFor - 1));
  EXPECT_FALSE(pace.Looked(true, false, 1000 + Pace::kSpinFor));
  EXPECT_EQ(pace.next_ns(), 1000 + Pace::kSpinFor + Pace::kLookEvery);
}

TEST(Pace, HurriesAgainWhenSomethingEnds) {
  Pace pace;
  pace.Hurry(0);
  EXPECT_FALSE(pace.Looked(true, false, kSecond));
  EXPECT_TRUE(pace.Looked(true, true, 2 * kSecond));
  EXPECT_TRUE(pace.Looked(true, false, 2 * kSecond + 1));
  EXPECT_FALSE(pace.Looked(true, false, 3 * kSecond));
  EXPECT_FALSE(pace.Looked(false, true, 4 * kSecond));
  EXPECT_EQ(pace.next_ns(), kNever);
}

}  // namespace
}  // namespace headrace::transport
