// The small parts that policies are built from.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "service/plan/draft.h"
#include "service/plan/exact.h"
#include "service/plan/plan.h"
#include "service/plan/ready_set.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

TEST(ReadySet, GivesTheSmallestMemberAsASetDoes) {
  Random random(51);
  ReadySet ready(200);
  std::set<std::uint32_t> expected;
  for (int step = 0; step < 20000; ++step) {
    const auto member = static_cast<std::uint32_t>(Below(random, 200));
    if (Below(random, 2) == 0) {
      ready.Insert(member);
      expected.insert(member);
    } else {
      ready.Erase(member);
      expected.erase(member);
    }
    ASSERT_EQ(ready.First(200), expected.empty() ? 200 : *expected.begin());
    ASSERT_EQ(ready.Contains(member), expected.contains(member));
  }
  ready.Clear();
  EXPECT_EQ(ready.First(200), 200u);
}

TEST(Draft, JoinsBytesThatFollowEachOther) {
  Draft draft;
  draft.Open();
  draft.Append(3, 0, 4);
  draft.Append(3, 4, 8);
  draft.Append(2, 0, 4);
  draft.Append(2, 8, 4);
  draft.Append(1, 0, 0);
  ASSERT_EQ(draft.ranges.size(), 3u);
  EXPECT_EQ(draft.ranges[0], (TensorRange{3, 0, 12}));
  EXPECT_EQ(draft.blocks[0].bytes, 20u);
  EXPECT_EQ(draft.blocks[0].lowest, 2u);
}

TEST(Draft, DropsABlockThatStayedEmpty) {
  Draft draft;
  draft.Open();
  draft.Append(0, 0, 4);
  draft.Open();
  draft.Close();
  EXPECT_EQ(draft.blocks.size(), 1u);
}

TEST(Draft, ComesBackFromAPlan) {
  Random random(52);
  for (int instance = 0; instance < 50; ++instance) {
    const Profile profile = RandomProfile(random, 30, 1'000'000);
    const Route route = RandomRoute(random, profile);
    for (const Policy policy : kPolicies) {
      const Plan plan = *MakePlan(policy, profile, route);
      const Draft draft = DraftOf(plan);
      const Timetable table = MakeTimetable(MakeWorkload(profile), route, draft);
      Plan again = Finish(policy, draft, table, plan.lower_bound_s);
      again.made_for = plan.made_for;
      ASSERT_EQ(again, plan) << instance;
    }
  }
}

TEST(Workload, AddsUpReleasesAndTails) {
  const Workload work = MakeWorkload(ProfileOf({{1, 1, 10}, {2, 2, 20}, {4, 4, 40}}));
  EXPECT_EQ(work.bytes, (std::vector<std::uint64_t>{4, 8, 16}));
  EXPECT_EQ(work.prefix_bytes, (std::vector<std::uint64_t>{4, 12, 28}));
  EXPECT_EQ(work.release_s, (std::vector<double>{7, 6, 4}));
  EXPECT_EQ(work.tail_s, (std::vector<double>{70, 60, 40}));
  EXPECT_EQ(work.element_bytes, 4u);
}

// The numbers of the reference implementation for seed 1234567.
TEST(Random, IsSplitMix64) {
  Random random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
  for (int draw = 0; draw < 1000; ++draw) {
    const double unit = random.Unit();
    ASSERT_GE(unit, 0);
    ASSERT_LT(unit, 1);
  }
}

// One tensor of 16 bytes, pushed and pulled at a second a byte. In one block that takes 32 s; in 16
// pieces the lanes overlap, and the last byte is pulled in the 17th second.
TEST(ExactOnAPipeline, CutsATensorSoThatBothLanesWork) {
  const Workload work = MakeWorkload(ProfileOf({{16, 0, 0}}, DType::kUInt8));
  const Route route = ParameterServerRoute(Affine(0, 1), Affine(0, 1), Placement::kExtra);
  const Draft draft = Exact(work, route, {});
  EXPECT_EQ(draft.blocks.size(), 16u);
  EXPECT_DOUBLE_EQ(MakeTimetable(work, route, draft).iteration_s, 17);
}

// The same with a startup of a second: 4 pieces of 4 bytes take 5 * 5 s, 2 pieces 3 * 9, 8 pieces
// 9 * 3.
TEST(ExactOnAPipeline, WeighsStartupsAgainstTheFill) {
  const Workload work = MakeWorkload(ProfileOf({{16, 0, 0}}, DType::kUInt8));
  const Route route = ParameterServerRoute(Affine(1, 1), Affine(1, 1), Placement::kExtra);
  const Draft draft = Exact(work, route, {});
  EXPECT_LE(MakeTimetable(work, route, draft).iteration_s, 25);
}

// Gradients 1 and 2 could all go in phase 2 without making anything late, as the forward pass is
// long. The lane is not left idle for that: they go when they are ready.
TEST(ExactOnOneLane, FillsTheLaneWhereItWouldIdle) {
  const Workload work =
      MakeWorkload(ProfileOf({{1, 40, 100}, {10, 30, 100}, {10, 10, 100}}, DType::kUInt8));
  const LaneOptimum optimum = ExactOnLane(work, {0, 1, 1}, 0);
  const Timetable table = MakeTimetable(work, AllReduceRoute(Affine(1, 1)), optimum.draft);
  EXPECT_DOUBLE_EQ(table.iteration_s, 80 + 2 + 300);
  EXPECT_LT(table.begin_s[0], 80);
  EXPECT_EQ(optimum.draft.blocks.back().lowest, 0u);
  EXPECT_EQ(optimum.draft.blocks.back().bytes, 1u);
}

// Whatever is rounded to whole elements, no block overhangs so far that a tensor is late for it.
TEST(ExactOnOneLane, IsLosslessOnTensorsOfUsualSize) {
  Random random(53);
  int lossless = 0;
  for (int instance = 0; instance < 300; ++instance) {
    const Profile profile = RandomProfile(random, 60, 4'000'000);
    const Workload work = MakeWorkload(profile);
    if (ExactOnLane(work, RandomLine(random, profile), 0).lossless) ++lossless;
  }
  EXPECT_GE(lossless, 297);
}

}  // namespace
}  // namespace headrace::plan
