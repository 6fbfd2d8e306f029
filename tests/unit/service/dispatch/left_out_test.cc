#include "service/dispatch/job/left_out.h"

#include <gtest/gtest.h>

#include <array>

namespace headrace::service {
namespace {

constexpr std::array<std::uint32_t, 1> kFirst{0};
constexpr std::array<std::uint32_t, 1> kSecond{1};
constexpr std::array<std::uint32_t, 2> kBoth{0, 1};

TEST(LeftOut, ReturnsInTheFirstIterationThatEncodesNothing) {
  LeftOut left_out;
  left_out.Reset(2, false);
  EXPECT_FALSE(left_out.OnExact(kBoth, 1)) << "nothing was left out yet";
  left_out.OnEncoded(kFirst, 2);
  EXPECT_FALSE(left_out.OnExact(kSecond, 2));
  EXPECT_TRUE(left_out.OnExact(kFirst, 3));
  EXPECT_TRUE(left_out.OnExact(kFirst, 3)) << "in all its blocks";
  EXPECT_FALSE(left_out.OnExact(kFirst, 4));
  left_out.OnEncoded(kFirst, 5);
  EXPECT_TRUE(left_out.OnExact(kBoth, 6));
}

// Where a gradient lies in two blocks, either one may be too small to be encoded.
TEST(LeftOut, KeepsWhatOtherBlocksOfTheIterationLeaveOut) {
  for (const bool encoded_first : {true, false}) {
    LeftOut left_out;
    left_out.Reset(1, false);
    for (std::uint64_t iteration = 1; iteration < 4; ++iteration) {
      if (encoded_first) left_out.OnEncoded(kFirst, iteration);
      left_out.OnExact(kFirst, iteration);
      if (!encoded_first) left_out.OnEncoded(kFirst, iteration);
    }
    EXPECT_TRUE(left_out.OnExact(kFirst, 4)) << encoded_first;
    EXPECT_FALSE(left_out.OnExact(kFirst, 5)) << encoded_first;
  }
}

TEST(LeftOut, BeginsWithWhatRanksHaveKept) {
  LeftOut left_out;
  left_out.Reset(1, true);
  EXPECT_TRUE(left_out.OnExact(kFirst, 1));
  EXPECT_FALSE(left_out.OnExact(kFirst, 2));
}

}  // namespace
}  // namespace headrace::service
