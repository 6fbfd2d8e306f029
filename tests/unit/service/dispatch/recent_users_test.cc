#include "service/dispatch/lanes/recent_users.h"

#include <gtest/gtest.h>

namespace headrace::service {
namespace {

constexpr JobId kA{1};
constexpr JobId kB{2};

TEST(RecentUsers, AJobIsNoneToItself) {
  RecentUsers users;
  EXPECT_FALSE(users.Has(kA, 0, kSecond));
  users.Moves(kA, 0, kSecond);
  EXPECT_FALSE(users.Has(kA, 0, kSecond));
  EXPECT_TRUE(users.Has(kB, 0, kSecond));
}

TEST(RecentUsers, EndsAWhileAfterTheOtherMovedLast) {
  RecentUsers users;
  users.Moves(kB, 0, kSecond);
  for (TimeNs now = kSecond; now < 2 * kSecond; now += kSecond / 4) users.Moves(kA, 0, now);
  EXPECT_TRUE(users.Has(kA, 0, kSecond + RecentUsers::kRecent - 1));
  EXPECT_FALSE(users.Has(kA, 0, kSecond + RecentUsers::kRecent));
  users.Moves(kB, 0, 20 * kSecond);
  EXPECT_TRUE(users.Has(kA, 0, 20 * kSecond));
}

TEST(RecentUsers, IsNoneToAHigherClass) {
  RecentUsers users;
  users.Moves(kA, 3, kSecond);
  users.Moves(kB, 2, kSecond);
  EXPECT_FALSE(users.Has(kA, 3, kSecond));
  EXPECT_TRUE(users.Has(kB, 2, kSecond));
}

}  // namespace
}  // namespace headrace::service
