// The optimum of one serial lane, against references that know nothing of the sweep.
#include "service/plan/exact.h"

#include <gtest/gtest.h>

#include "service/plan/bound.h"
#include "service/plan/sweep.h"
#include "tests/unit/plan/reference.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

struct Solved {
  Sweep sweep;
  double planned_s = 0;
  std::size_t blocks_count = 0;
};

Solved Solve(const Workload& work, const CostPiece& line) {
  const Route route = AllReduceRoute({{line}});
  const double bound_s = LowerBound(work, route);
  const Draft draft = Exact(work, route, {.bound_s = bound_s});
  return {SweepCuts(work, line.startup_s, line.s_per_byte, bound_s),
          MakeTimetable(work, route, draft).iteration_s, draft.blocks.size()};
}

TEST(ExactPlan, EqualsBruteForceOverCutsAndGroups) {
  Random random(1);
  for (int instance = 0; instance < 1500; ++instance) {
    const Profile profile = RandomProfile(random, 7, 2'000'000);
    const CostPiece line = RandomLine(random, profile);
    const Workload work = MakeWorkload(profile);
    const Solved solved = Solve(work, line);
    const double best_s = BruteForceCuts(work, line);
    ASSERT_NEAR(solved.sweep.iteration_s, best_s, best_s * kRounding) << "instance " << instance;
    // Cutting between elements only may cost a few elements' time.
    const double elements_s = 8 * static_cast<double>(work.element_bytes) * line.s_per_byte;
    ASSERT_GE(solved.planned_s, best_s * (1 - kRounding)) << "instance " << instance;
    ASSERT_LE(solved.planned_s, best_s * (1 + kRounding) + elements_s) << "instance " << instance;
  }
}

TEST(ExactPlan, IsNeverBeatenByAnyScheduleOfAFewElements) {
  Random random(2);
  int equal = 0;
  constexpr int kInstances = 1200;
  for (int instance = 0; instance < kInstances; ++instance) {
    const Profile profile = RandomProfile(random, 3, 3, DType::kUInt8);
    const CostPiece line = RandomLine(random, profile);
    const Workload work = MakeWorkload(profile);
    const Solved solved = Solve(work, line);
    const double best_s = BruteForceSchedules(work, line);
    // The sweep may use fractions of an element, so it can only be faster.
    ASSERT_LE(solved.sweep.iteration_s, best_s * (1 + kRounding)) << "instance " << instance;
    // The plan may not.
    ASSERT_GE(solved.planned_s, best_s * (1 - kRounding)) << "instance " << instance;
    if (solved.planned_s <= best_s * (1 + kRounding)) ++equal;
  }
  EXPECT_GT(equal, kInstances * 95 / 100);
}

TEST(ExactPlan, EqualsTheFullDynamicProgramOnLargerInstances) {
  Random random(3);
  for (int instance = 0; instance < 60; ++instance) {
    const Profile profile = RandomProfile(random, 24, 4'000'000);
    const CostPiece line = RandomLine(random, profile);
    const Workload work = MakeWorkload(profile);
    const double best_s = DynamicProgram(work, line);
    ASSERT_NEAR(Solve(work, line).sweep.iteration_s, best_s, best_s * kRounding)
        << "instance " << instance;
  }
}

TEST(ExactPlan, SendsOneBlockWhenStartupIsAll) {
  const Profile profile = ProfileOf({{1000, 1e-3, 1e-3}, {1000, 1e-3, 1e-3}, {1000, 1e-3, 1e-3}});
  const Solved solved = Solve(MakeWorkload(profile), {0, 1.0, 1e-12});
  EXPECT_EQ(solved.blocks_count, 1u);
}

// Two tensors, a = 1, b = 1 per byte (one element of one byte), tb = 4 each, tf = 1 each. r_1 = 4,
// r_0 = 8. Between them the lane has 4 - 1 = 3 bytes' time.
TEST(ExactPlan, SplitsATensorAtTheEndOfTheBackwardPass) {
  const Profile profile = ProfileOf({{2, 4, 1}, {5, 4, 1}}, DType::kUInt8);
  const Workload work = MakeWorkload(profile);
  const Draft draft = ExactOnLane(work, {0, 1, 1}, 0).draft;
  // Block 1: 3 bytes of tensor 1 in [4, 8]. Phase 2 in one group: 2 + 2 bytes until 13, so 13 + 2 =
  // 15; in two groups: tensor 0 until 11, +2 = 13, tensor 1 until 14, +1 = 15. One group is enough.
  ASSERT_EQ(draft.blocks.size(), 2u);
  EXPECT_EQ(draft.blocks[0].bytes, 3u);
  EXPECT_EQ(draft.RangesOf(draft.blocks[0])[0], (TensorRange{1, 0, 3}));
  EXPECT_EQ(draft.RangesOf(draft.blocks[1])[0], (TensorRange{0, 0, 2}));
  EXPECT_EQ(draft.RangesOf(draft.blocks[1])[1], (TensorRange{1, 3, 2}));
  EXPECT_DOUBLE_EQ(MakeTimetable(work, AllReduceRoute(Affine(1, 1)), draft).iteration_s, 15);
}

TEST(ExactPlan, TakesNoLongerOnAFasterLane) {
  Random random(4);
  for (int instance = 0; instance < 300; ++instance) {
    const Profile profile = RandomProfile(random, 40, 4'000'000);
    const Workload work = MakeWorkload(profile);
    const CostPiece line = RandomLine(random, profile);
    const double base_s = Solve(work, line).sweep.iteration_s;
    for (const double factor : {0.9, 0.5, 0.1, 0.0}) {
      const CostPiece wide{0, line.startup_s, line.s_per_byte * factor};
      const CostPiece quick{0, line.startup_s * factor, line.s_per_byte};
      ASSERT_LE(Solve(work, wide).sweep.iteration_s, base_s * (1 + kRounding)) << instance;
      ASSERT_LE(Solve(work, quick).sweep.iteration_s, base_s * (1 + kRounding)) << instance;
    }
  }
}

TEST(ExactPlan, ReachesTheBoundWhereStartupsAreFree) {
  Random random(5);
  for (int instance = 0; instance < 200; ++instance) {
    const Profile profile = RandomProfile(random, 60, 4'000'000);
    CostPiece line = RandomLine(random, profile);
    line.startup_s = 0;
    const Workload work = MakeWorkload(profile);
    const double bound_s = LowerBound(work, AllReduceRoute({{line}}));
    ASSERT_NEAR(Solve(work, line).sweep.iteration_s, bound_s, bound_s * kRounding) << instance;
  }
}

}  // namespace
}  // namespace headrace::plan
