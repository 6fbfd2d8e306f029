// What an iteration would be without the other job: by hand.
#include "service/schedule/interleave_alone.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace::schedule {
namespace {

// Two gradients of a block each: the second one's is ready first. The backward pass takes 0.4 s and
// the forward pass 0.2 s, of which 0.05 s for the first gradient.
struct Training {
  explicit Training(double work_s, bool barrier = false)
      : blocks{{.ready_s = 0.1, .work_s = work_s}, {.ready_s = 0.4, .work_s = work_s}},
        iteration(blocks, last_block, forward_s, 0.6, barrier) {}

  std::vector<AloneBlock> blocks;
  std::vector<std::uint32_t> last_block{1, 0};
  std::vector<double> forward_s{0.05, 0.15};
  AloneIteration iteration;
};

TEST(AloneIteration, WaitsForTheGradientThatTheForwardPassNeedsFirst) {
  Training training(0.1);
  // Ready at 0.4 s, there at 0.5 s.
  EXPECT_NEAR(training.iteration.Period(), 0.5 + 0.2, 1e-9);
}

TEST(AloneIteration, WaitsForALaterGradientWhileItComputesNothing) {
  Training training(0.1);
  training.last_block = {0, 1};
  // The first is there by then; the second one comes 0.05 s after it is needed.
  EXPECT_NEAR(training.iteration.Period(), 0.5 + 0.15, 1e-9);
}

TEST(AloneIteration, WaitsForTheLastBlockWhereThereIsABarrier) {
  Training training(0.1, true);
  training.last_block = {0, 0};
  EXPECT_NEAR(training.iteration.Period(), 0.5 + 0.2, 1e-9);
}

TEST(AloneIteration, UsesTheLaneWhileBlocksMove) {
  Training training(0.1);
  const Rhythm rhythm = training.iteration.MakeRhythm();
  EXPECT_NEAR(rhythm.period_s, 0.7, 1e-9);
  ASSERT_EQ(rhythm.uses().size(), 2U);
  EXPECT_NEAR(rhythm.uses()[0].begin_s, 0.1, 1e-9);
  EXPECT_NEAR(rhythm.uses()[1].begin_s, 0.4, 1e-9);
  EXPECT_NEAR(rhythm.work_s(), 0.2, 1e-9);
}

TEST(AloneIteration, JoinsBlocksThatWaitForEachOther) {
  Training training(0.5);
  const Rhythm rhythm = training.iteration.MakeRhythm();
  ASSERT_EQ(rhythm.uses().size(), 1U);
  EXPECT_NEAR(rhythm.uses()[0].end_s(), 1.1, 1e-9);
}

TEST(AloneIteration, ShiftsEverythingByTheHoldWhereTheForwardPassWaits) {
  Training training(0.5);
  EXPECT_NEAR(training.iteration.Period(0.08), training.iteration.Period() + 0.08, 1e-9);
  EXPECT_NEAR(training.iteration.HoldFor(0.08, 1), 0.08, 1e-6);
}

TEST(AloneIteration, HoldsLongerWhereGradientsComeBeforeTheyAreNeeded) {
  Training training(0.1);
  // Held by 0.2 s, the first block ends when the second is ready: nothing is later.
  EXPECT_NEAR(training.iteration.Period(0.2), training.iteration.Period(), 1e-9);
  EXPECT_NEAR(training.iteration.HoldFor(0.08, 1), 0.28, 1e-6);
}

TEST(AloneIteration, SaysThatNoHoldWouldDo) {
  Training training(0.1);
  EXPECT_LT(training.iteration.HoldFor(0.08, 0.27), 0);
  EXPECT_LT(training.iteration.HoldFor(0.3, 0.2), 0);
  EXPECT_EQ(training.iteration.HoldFor(0, 1), 0);
}

TEST(AloneIteration, DoesNotBelieveThatComputingTakesLessThanTheForwardPass) {
  std::vector<AloneBlock> blocks{{.ready_s = 0, .work_s = 0.1}};
  const std::vector<std::uint32_t> last_block{0};
  const std::vector<double> forward_s{0.5};
  AloneIteration iteration(blocks, last_block, forward_s, 0.1, false);
  EXPECT_NEAR(iteration.Period(), 0.6, 1e-9);
}

}  // namespace
}  // namespace headrace::schedule
