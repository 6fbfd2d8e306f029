// The fit of a cost line, and the keeper that follows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "transport/probe/cost_keeper.h"
#include "transport/probe/line_fit.h"

namespace headrace::transport {
namespace {

CostLine Fit(const std::vector<CostSample>& samples) {
  CostSums sums;
  for (const CostSample& sample : samples) sums.Add(sample, 1 / (sample.seconds * sample.seconds));
  return FitCostLine(sums);
}

TEST(LineFit, GoesThroughPointsOfALine) {
  std::vector<CostSample> samples;
  for (const double bytes : {4e3, 64e3, 1e6, 16e6}) samples.push_back({bytes, 5e-5 + 2e-9 * bytes});
  const CostLine line = Fit(samples);
  EXPECT_NEAR(line.startup_s, 5e-5, 1e-9);
  EXPECT_NEAR(line.s_per_byte, 2e-9, 1e-14);
}

TEST(LineFit, NeverGivesANegativeStartup) {
  // Small ones quicker than their share: caches, or a line that the large ones filled.
  const std::vector<CostSample> samples = {{1e5, 0.7e-4}, {1e6, 1e-3}, {4e6, 4.4e-3}};
  const CostLine line = Fit(samples);
  EXPECT_EQ(line.startup_s, 0);
  EXPECT_NEAR(line.Seconds(1e6), 1e-3, 3e-4);
}

TEST(LineFit, NeverGivesARateBelowTheLeast) {
  const std::vector<CostSample> samples = {{1e3, 2e-3}, {1e6, 1e-3}, {2e6, 1e-3}};
  const CostLine line = Fit(samples);
  EXPECT_EQ(line.s_per_byte, kSecondsPerByteMin);
  EXPECT_GT(line.startup_s, 5e-4);
  EXPECT_LT(line.startup_s, 2e-3);
}

TEST(LineFit, TakesOneSizeForRate) {
  const CostLine line = Fit(std::vector<CostSample>{{1e6, 1e-3}, {1e6, 1e-3}});
  EXPECT_EQ(line.startup_s, 0);
  EXPECT_NEAR(line.s_per_byte, 1e-9, 1e-13);
}

TEST(LineFit, HasALineForNoSamplesAtAll) {
  EXPECT_EQ(Fit(std::vector<CostSample>{}), (CostLine{0, kSecondsPerByteMin}));
}

TEST(LineOfLargest, GoesThroughPointsOfALine) {
  std::vector<CostSample> samples;
  for (const double bytes : {4e3, 64e3, 1e6, 16e6}) samples.push_back({bytes, 5e-5 + 2e-9 * bytes});
  const CostLine line = LineOfLargest(samples);
  EXPECT_NEAR(line.startup_s, 5e-5, 1e-9);
  EXPECT_NEAR(line.s_per_byte, 2e-9, 1e-14);
}

TEST(LineOfLargest, IsNotTakenInByABurstThatALimitAllows) {
  // The first 256 KiB of each transfer pass at once; the rest at 1 Gbit/s.
  std::vector<CostSample> samples;
  for (const double bytes : {4096.0, 262144.0, 1048576.0, 4194304.0}) {
    samples.push_back({bytes, 1e-4 + 8e-9 * std::max(0.0, bytes - 262144)});
  }
  const CostLine line = LineOfLargest(samples);
  EXPECT_NEAR(line.s_per_byte, 8e-9, 1e-11);
  EXPECT_NEAR(line.startup_s, 1e-4, 1e-9);
}

// At 50 Mbit/s 4 KiB would take six times as long as they do within the burst.
TEST(LineOfLargest, HasAStartupHoweverSlowTheRateIsBehindABurst) {
  std::vector<CostSample> samples;
  for (const double bytes : {4096.0, 32768.0, 262144.0, 1048576.0}) {
    const double in_burst = std::min(bytes, 65536.0);
    samples.push_back({bytes, 1e-4 + 1e-9 * in_burst + 1.6e-7 * (bytes - in_burst)});
  }
  EXPECT_NEAR(LineOfLargest(samples).startup_s, 1e-4, 1e-9);
}

TEST(LineOfLargest, KeepsToTheLargestWhenTheTwoDisagree) {
  EXPECT_NEAR(
      LineOfLargest(std::vector<CostSample>{{1e3, 1e-4}, {1e6, 5e-3}, {4e6, 4e-3}}).s_per_byte,
      0.5e-9, 1e-12);
  EXPECT_NEAR(
      LineOfLargest(std::vector<CostSample>{{1e3, 1e-4}, {1e6, 1e-6}, {1.1e6, 4e-3}}).s_per_byte,
      1.5 * 4e-3 / 1.1e6, 1e-12);
}

TEST(LineOfLargest, HasALineForOneSampleAndForNone) {
  EXPECT_NEAR(LineOfLargest(std::vector<CostSample>{{1e6, 1e-3}}).s_per_byte, 1e-9, 1e-13);
  EXPECT_EQ(LineOfLargest(std::vector<CostSample>{}), (CostLine{0, kSecondsPerByteMin}));
}

class Keeper : public ::testing::Test {
 protected:
  // Transfers of random sizes that take what `line` says, with noise.
  void Feed(const CostLine& line, int count) {
    std::uniform_real_distribution<double> size(1e4, 4e6);
    std::uniform_real_distribution<double> noise(0.9, 1.1);
    for (int i = 0; i < count; ++i) {
      const double bytes = size(random_);
      const double seconds = line.Seconds(bytes) * noise(random_);
      now_ += std::llround(seconds * kSecond);
      keeper_.Add(bytes, seconds, now_);
    }
  }

  static constexpr CostLine kGigabit{100e-6, 8.5e-9};
  std::mt19937 random_{11};
  CostKeeper keeper_{kGigabit};
  TimeNs now_ = 1000 * kSecond;
};

TEST_F(Keeper, StaysWithALineThatHolds) {
  Feed(kGigabit, 500);
  EXPECT_NEAR(keeper_.line().s_per_byte, 8.5e-9, 0.5e-9);
  EXPECT_NEAR(keeper_.line().startup_s, 100e-6, 60e-6);
}

TEST_F(Keeper, FollowsARateThatHalvesAndComesBack) {
  Feed(kGigabit, 200);
  Feed({100e-6, 17e-9}, 60);
  EXPECT_NEAR(keeper_.line().s_per_byte, 17e-9, 1.5e-9);
  Feed(kGigabit, 200);
  EXPECT_NEAR(keeper_.line().s_per_byte, 8.5e-9, 1e-9);
}

TEST_F(Keeper, FollowsATenthOfTheRate) {
  Feed(kGigabit, 200);
  Feed({100e-6, 85e-9}, 60);
  EXPECT_NEAR(keeper_.line().s_per_byte, 85e-9, 9e-9);
}

TEST_F(Keeper, IsNotBentByTransfersThatWaitedForAPeer) {
  for (int i = 0; i < 50; ++i) {
    Feed(kGigabit, 19);
    keeper_.Add(1e6, 1.0, now_);  // a hundred times too long
  }
  Feed(kGigabit, 19);
  EXPECT_NEAR(keeper_.line().Seconds(1e6), kGigabit.Seconds(1e6), 0.1 * kGigabit.Seconds(1e6));
}

TEST_F(Keeper, KeepsTheStartupWhenAllSizesAreAlike) {
  for (int i = 0; i < 300; ++i) keeper_.Add(1e6, 100e-6 + 12e-9 * 1e6, now_);
  EXPECT_NEAR(keeper_.line().startup_s, 100e-6, 1e-9);
  EXPECT_NEAR(keeper_.line().s_per_byte, 12e-9, 0.1e-9);
}

TEST_F(Keeper, GivesUpAStartupThatIsLongerThanTheTransfers) {
  for (int i = 0; i < 300; ++i) keeper_.Add(1e4, 50e-6, now_);
  EXPECT_NEAR(keeper_.line().Seconds(1e4), 50e-6, 5e-6);
  EXPECT_GE(keeper_.line().startup_s, 0);
}

TEST_F(Keeper, IgnoresWhatCannotBe) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [bytes, seconds] : std::vector<std::pair<double, double>>{{0, 1},
                                                                             {1, 0},
                                                                             {-1, 1},
                                                                             {1, -1},
                                                                             {kNan, 1},
                                                                             {1, kNan},
                                                                             {kInfinity, 1},
                                                                             {1, kInfinity}}) {
    keeper_.Add(bytes, seconds, now_);
  }
  EXPECT_EQ(keeper_.count(), 0U);
  EXPECT_EQ(keeper_.line(), kGigabit);
  EXPECT_EQ(keeper_.RateNow(now_), 0);
}

TEST_F(Keeper, WaitsForAFewTransfersBeforeItMoves) {
  for (int i = 0; i < 4; ++i) keeper_.Add(1e6, 1.0, now_);
  EXPECT_EQ(keeper_.line(), kGigabit);
}

TEST_F(Keeper, TellsTheRateOfTheLastSecond) {
  for (int i = 0; i < 100; ++i) {
    now_ += 10 * kMillisecond;
    keeper_.Add(1e6, 8e-3, now_);
  }
  EXPECT_NEAR(keeper_.RateNow(now_), 1e8, 6e6);
  EXPECT_NEAR(keeper_.RateNow(now_ + kSecond / 2), 5e7, 6e6);
  EXPECT_EQ(keeper_.RateNow(now_ + 2 * kSecond), 0);
}

}  // namespace
}  // namespace headrace::transport
