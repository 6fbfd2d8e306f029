#include "service/dispatch/job/lane_samples.h"

#include <gtest/gtest.h>

#include <limits>

namespace headrace::service {
namespace {

constexpr transport::CostLine kTrue{2e-4, 8e-9};
constexpr std::uint32_t kPlan = 2;

// The sizes of a model's gradients: many small ones, a few large.
constexpr double kSizes[] = {512,   512,   1024,   2048, 4096, 16384,
                             65536, 65536, 262144, 1e6,  4e6,  9e6};

TEST(LaneSamples, FindTheLineOfBlocksOfAllSizes) {
  LaneSamples samples;
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (const double size : kSizes) samples.Add(kPlan, size, kTrue.Seconds(size));
  }
  const transport::CostLine line = samples.Fit({});
  EXPECT_NEAR(line.startup_s, kTrue.startup_s, 2e-6);
  EXPECT_NEAR(line.s_per_byte, kTrue.s_per_byte, 1e-11);
}

TEST(LaneSamples, BlocksThatWaitedForAnotherNodeDoNotBendIt) {
  LaneSamples samples;
  int count = 0;
  for (int iteration = 0; iteration < 6; ++iteration) {
    for (const double size : kSizes) {
      samples.Add(kPlan, size, kTrue.Seconds(size) * (++count % 5 == 0 ? 3 : 1));
    }
  }
  const transport::CostLine line = samples.Fit({});
  EXPECT_NEAR(line.startup_s, kTrue.startup_s, 0.1 * kTrue.startup_s);
  EXPECT_NEAR(line.s_per_byte, kTrue.s_per_byte, 0.02 * kTrue.s_per_byte);
}

TEST(LaneSamples, SmallBlocksThatABurstLetsThroughDoNotMakeTheRate) {
  LaneSamples samples;
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (const double size : kSizes)
      samples.Add(kPlan, size, size <= 262144 ? 5e-5 : kTrue.Seconds(size));
  }
  const transport::CostLine line = samples.Fit(kTrue);
  EXPECT_NEAR(line.s_per_byte, kTrue.s_per_byte, 0.1 * kTrue.s_per_byte);
}

// As seen of ResNet-50 on a link of 1 Gbit/s: a hundred small blocks, each of which costs many
// times what its bytes do, hardly ever the same. None of them waited.
TEST(LaneSamples, ManySmallBlocksTellTheStartupHoweverTheyDiffer) {
  LaneSamples samples;
  double whole_s = 0;
  double bytes = 0;
  int count = 0;
  for (int i = 0; i < 162; ++i) {
    const double size = i % 3 == 0 ? 1.9e6 : 2048;
    const double startup_s = 5e-5 + 5e-5 * (i * 7 % 5);  // 50 to 250 us
    samples.Add(kPlan, size, startup_s + 8e-9 * size);
    whole_s += startup_s + 8e-9 * size;
    bytes += size;
    ++count;
  }
  const transport::CostLine line = samples.Fit({3e-5, 8.6e-9});
  EXPECT_NEAR(line.startup_s, 1.5e-4, 3e-5);
  // What policies are compared by: the time of all blocks.
  EXPECT_NEAR(line.startup_s * count + line.s_per_byte * bytes, whole_s, 0.01 * whole_s);
}

TEST(LaneSamples, OfOneSizeTheStartupIsThatOfThePrior) {
  LaneSamples samples;
  for (int i = 0; i < 20; ++i) samples.Add(kPlan, 4e6, kTrue.Seconds(4e6));
  const transport::CostLine line = samples.Fit({2e-4, 1e-8});
  EXPECT_NEAR(line.startup_s, 2e-4, 5e-5);
  EXPECT_NEAR(line.Seconds(4e6), kTrue.Seconds(4e6), 0.01 * kTrue.Seconds(4e6));
}

// As seen where five jobs measured their links at the same time: 30 times too slow.
TEST(LaneSamples, OfOneSizeAPriorThatWasFarTooSlowIsNoStartup) {
  LaneSamples samples;
  for (int i = 0; i < 20; ++i) samples.Add(kPlan, 2e6, kTrue.Seconds(2e6) * (1 + 0.01 * (i % 4)));
  const transport::CostLine line = samples.Fit({2.6e-3, 2.4e-7});
  EXPECT_LT(line.startup_s, 1e-3);
  EXPECT_NEAR(line.Seconds(2e6), kTrue.Seconds(2e6), 0.04 * kTrue.Seconds(2e6));
  EXPECT_NEAR(line.Seconds(8e6), kTrue.Seconds(8e6), 0.06 * kTrue.Seconds(8e6));
}

// It was measured while others were at it, say.
TEST(LaneSamples, WithFewSamplesThePriorIsNoSlowerThanWhatWasSeen) {
  LaneSamples samples;
  samples.AddBound(4e6, 0.1);
  const transport::CostLine slow{1e-3, 1e-5};
  transport::CostLine line = samples.Fit(slow);
  EXPECT_NEAR(line.Seconds(4e6), 0.1, 1e-9);
  EXPECT_NEAR(line.startup_s / line.s_per_byte, slow.startup_s / slow.s_per_byte, 1e-6);
  EXPECT_EQ(samples.Fit(kTrue), kTrue) << "which is quicker";
  samples.Add(kPlan, 4e6, 0.04);
  samples.AddBound(1e6, 0.02);
  line = samples.Fit(slow);
  EXPECT_NEAR(line.Seconds(4e6), 0.04, 1e-9);
  // Bounds are no samples.
  for (int i = 0; i < 20; ++i) samples.AddBound(4e6, 0.04);
  EXPECT_NEAR(samples.Fit(slow).Seconds(4e6), 0.04, 1e-9);
  samples.AddBound(0, 1);
  samples.AddBound(4e6, 0);
  samples.AddBound(4e6, std::numeric_limits<double>::quiet_NaN());
  EXPECT_NEAR(samples.Fit(slow).Seconds(4e6), 0.04, 1e-9);
}

// A burst that a rate limit lets through, say.
TEST(LaneSamples, OneThatWasFarTooQuickIsForgotten) {
  LaneSamples samples;
  samples.AddBound(4e6, 5e-5);
  EXPECT_LT(samples.Believed(kTrue).Seconds(4e6), 1e-4);
  for (int i = 0; i < 4; ++i) samples.AddBound(4e6, kTrue.Seconds(4e6));
  EXPECT_EQ(samples.Believed(kTrue), kTrue) << "most say something else";
  // One in five bytes, for long.
  for (std::size_t i = 0; i < 3 * LaneSamples::kRecentMax; ++i) {
    samples.Add(kPlan, 4e6, i % 5 == 0 ? 5e-5 : kTrue.Seconds(4e6));
  }
  EXPECT_EQ(samples.Believed(kTrue), kTrue);
  EXPECT_NEAR(samples.Fit(kTrue).s_per_byte, kTrue.s_per_byte, 0.1 * kTrue.s_per_byte);
  // All of late were that quick.
  for (std::size_t i = 0; i < LaneSamples::kRecentMax; ++i) samples.AddBound(4e6, 2e-3);
  EXPECT_NEAR(samples.Believed(kTrue).Seconds(4e6), 2e-3, 1e-9);
}

transport::Completion EndedAt(TimeNs begin_ns, TimeNs end_ns) {
  return {.begin_ns = begin_ns, .end_ns = end_ns};
}

TEST(LaneSamples, EachStageCostsWhatItEndedAfterTheOneBefore) {
  LaneSamples samples;
  EXPECT_DOUBLE_EQ(samples.SecondsOf(100, EndedAt(110, 900), 1000), 900e-9) << "with both ways";
  EXPECT_DOUBLE_EQ(samples.SecondsOf(200, EndedAt(210, 1500), 1600), 600e-9) << "beside another";
  // Dispatch gets two ends in one turn, or one in a turn that began before it.
  EXPECT_DOUBLE_EQ(samples.SecondsOf(1600, EndedAt(1700, 2000), 2600), 1000e-9);
  EXPECT_DOUBLE_EQ(samples.SecondsOf(1600, EndedAt(1700, 2500), 2600), 500e-9);
  EXPECT_DOUBLE_EQ(samples.SecondsOf(2990, EndedAt(3000, 3700), 3000), 700e-9);
}

// The ring outlives plans: after the warm-up under wfbp it is full of small blocks that were slow
// beside others, when a plan of few large ones is in force.
TEST(LaneSamples, BlocksOfAnEarlierPlanWeighLessOnceThereAreEnough) {
  const transport::CostLine slow{1e-3, 1.1e-8};
  const transport::CostLine fast{2e-4, 8e-9};
  constexpr double kLarge = 64e6;
  LaneSamples samples;
  for (std::size_t i = 0; i < LaneSamples::kSamplesMax; ++i) {
    samples.Add(kPlan, 1e6, slow.Seconds(1e6));
  }
  constexpr std::size_t kFew = LaneSamples::kOfPlanMin - 1;
  for (std::size_t i = 0; i < kFew; ++i) samples.Add(kPlan + 1, kLarge, fast.Seconds(kLarge));
  EXPECT_GT(samples.Fit({}).Seconds(kLarge), 1.2 * fast.Seconds(kLarge)) << "too few to tell";
  samples.Add(kPlan + 1, kLarge, fast.Seconds(kLarge));
  EXPECT_NEAR(samples.Fit({}).Seconds(kLarge), fast.Seconds(kLarge), 0.03 * fast.Seconds(kLarge));
  // A plan that follows begins to count anew.
  samples.Add(kPlan + 2, kLarge, fast.Seconds(kLarge));
  EXPECT_GT(samples.Fit({}).Seconds(kLarge), 1.2 * fast.Seconds(kLarge));
}

TEST(LaneSamples, AreOfThePriorsWireUntilTheJobComesToAnother) {
  LaneSamples samples;
  EXPECT_TRUE(samples.is_of_prior());
  samples.Add(kPlan, 4e6, 1e-3);
  samples.Clear();
  EXPECT_FALSE(samples.is_of_prior());
  EXPECT_EQ(samples.Fit(kTrue), kTrue) << "and nothing is known of that";
}

TEST(LaneSamples, WithoutSamplesThePriorStands) { EXPECT_EQ(LaneSamples().Fit(kTrue), kTrue); }

}  // namespace
}  // namespace headrace::service
