#include "service/dispatch/lanes/recent_users.h"

#include <gtest/gtest.h>

namespace headrace::service {
namespace {

constexpr JobId kJobOne{1};
constexpr JobId kJobTwo{2};

TEST(RecentUsers, AJobIsNoneToItself) {
  RecentUsers users;
  EXPECT_FALSE(users.Has(kJobOne, 0, kSecond));
  users.Moves(kJobOne, 0, kSecond);
  EXPECT_FALSE(users.Has(kJobOne, 0, kSecond));
  EXPECT_TRUE(users.Has(kJobTwo, 0, kSecond));
}

TEST(RecentUsers, EndsAWhileAfterTheOtherMovedLast) {
  RecentUsers users;
  users.Moves(kJobTwo, 0, kSecond);
  for (TimeNs now = kSecond; now < 2 * kSecond; now += kSecond / 4) users.Moves(kJobOne, 0, now);
  EXPECT_TRUE(users.Has(kJobOne, 0, kSecond + RecentUsers::kRecent - 1));
  EXPECT_FALSE(users.Has(kJobOne, 0, kSecond + RecentUsers::kRecent));
  users.Moves(kJobTwo, 0, 20 * kSecond);
  EXPECT_TRUE(users.Has(kJobOne, 0, 20 * kSecond));
}

TEST(RecentUsers, IsNoneToAHigherClass) {
  RecentUsers users;
  users.Moves(kJobOne, 3, kSecond);
  users.Moves(kJobTwo, 2, kSecond);
  EXPECT_FALSE(users.Has(kJobOne, 3, kSecond));
  EXPECT_TRUE(users.Has(kJobTwo, 2, kSecond));
}

}  // namespace
}  // namespace headrace::service
