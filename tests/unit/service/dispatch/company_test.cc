#include "service/dispatch/lanes/company.h"

#include <gtest/gtest.h>

namespace headrace::service {
namespace {

constexpr JobId kA{1};
constexpr JobId kB{2};

TEST(Company, AJobIsNoneToItself) {
  Company company;
  EXPECT_FALSE(company.Has(kA, 0, kSecond));
  company.Moves(kA, 0, kSecond);
  EXPECT_FALSE(company.Has(kA, 0, kSecond));
  EXPECT_TRUE(company.Has(kB, 0, kSecond));
}

TEST(Company, EndsAWhileAfterTheOtherMovedLast) {
  Company company;
  company.Moves(kB, 0, kSecond);
  for (TimeNs now = kSecond; now < 2 * kSecond; now += kSecond / 4) company.Moves(kA, 0, now);
  EXPECT_TRUE(company.Has(kA, 0, kSecond + Company::kRecent - 1));
  EXPECT_FALSE(company.Has(kA, 0, kSecond + Company::kRecent));
  company.Moves(kB, 0, 20 * kSecond);
  EXPECT_TRUE(company.Has(kA, 0, 20 * kSecond));
}

TEST(Company, IsNoneToAHigherClass) {
  Company company;
  company.Moves(kA, 3, kSecond);
  company.Moves(kB, 2, kSecond);
  EXPECT_FALSE(company.Has(kA, 3, kSecond));
  EXPECT_TRUE(company.Has(kB, 2, kSecond));
}

}  // namespace
}  // namespace headrace::service
