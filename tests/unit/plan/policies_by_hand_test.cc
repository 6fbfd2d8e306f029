// Each published policy on an instance small enough to follow with a pencil. Elements are one byte,
// a startup is a, a byte costs 1.
#include <gtest/gtest.h>

#include "service/plan/bytescheduler.h"
#include "service/plan/policies.h"
#include "service/plan/us_byte.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

struct Expected {
  std::uint32_t tensor;  // the lowest in the block
  std::uint64_t bytes;
  double begin_s;
  double end_s;
};

void ExpectBlocks(const Draft& draft, const Timetable& table, const std::vector<Expected>& blocks) {
  ASSERT_EQ(draft.blocks.size(), blocks.size());
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    EXPECT_EQ(draft.blocks[index].lowest, blocks[index].tensor) << "block " << index;
    EXPECT_EQ(draft.blocks[index].bytes, blocks[index].bytes) << "block " << index;
    EXPECT_DOUBLE_EQ(table.begin_s[index], blocks[index].begin_s) << "block " << index;
    EXPECT_DOUBLE_EQ(table.end_s[index], blocks[index].end_s) << "block " << index;
  }
}

// r_1 = 4, r_0 = 8; tails 2 and 1.
Workload TwoTensors() { return MakeWorkload(ProfileOf({{2, 4, 1}, {5, 4, 1}}, DType::kUInt8)); }

// r_2 = 1, r_1 = 1.5, r_0 = 10; tails 3, 2, 1.
Workload ThreeTensors() {
  return MakeWorkload(ProfileOf({{1, 8.5, 1}, {4, 0.5, 1}, {10, 1, 1}}, DType::kUInt8));
}

TEST(BspPlan, SendsAllInOneBlockAfterTheBackwardPass) {
  const Draft draft = Bsp(TwoTensors(), AllReduceRoute(Affine(1, 1)), 0);
  const Timetable table = MakeTimetable(TwoTensors(), AllReduceRoute(Affine(1, 1)), draft);
  ExpectBlocks(draft, table, {{0, 7, 8, 16}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 16 + 2);
}

TEST(WfbpPlan, SendsEachTensorAsItIsReadyAndWaitsForAll) {
  const Draft draft = Wfbp(TwoTensors(), AllReduceRoute(Affine(1, 1)), 0);
  const Timetable table = MakeTimetable(TwoTensors(), AllReduceRoute(Affine(1, 1)), draft);
  ExpectBlocks(draft, table, {{1, 5, 4, 10}, {0, 2, 10, 13}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 13 + 2);
}

// a = 2; r_3 = 1, r_2 = 2, r_1 = 6, r_0 = 7.
// 3 could start at 1; waiting for 2 costs 1 < a: merged. {3, 2} starts at 2; waiting for 1 would
// cost 4: sent, 2 + 3 until 7. 1 could start at 7, after r_0 = 7: merged with 0.
TEST(MgWfbpPlan, MergesWhereTheMergeRuleSaysSo) {
  const Workload work =
      MakeWorkload(ProfileOf({{2, 1, 1}, {3, 4, 1}, {1, 1, 1}, {2, 1, 1}}, DType::kUInt8));
  const Route route = AllReduceRoute(Affine(2, 1));
  const Draft draft = MgWfbp(work, route, 0);
  const Timetable table = MakeTimetable(work, route, draft);
  ExpectBlocks(draft, table, {{2, 3, 2, 7}, {0, 5, 7, 14}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 14 + 4);
}

TEST(MgWfbpPlan, IsWfbpWhereStartupsAreFreeAndTheLaneIsFast) {
  const Workload work = ThreeTensors();
  const Draft draft = MgWfbp(work, AllReduceRoute(Affine(0, 1e-6)), 0);
  EXPECT_EQ(draft.blocks.size(), work.size());
}

// a = 1, partitions of 2 bytes, one credit: tensor 0 overtakes the last partition of tensor 1.
TEST(ByteSchedulerPlan, LetsTheInputOvertakeAtPartitionBorders) {
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft draft = ByteScheduler(TwoTensors(), route, {2, 1});
  const Timetable table = MakeTimetable(TwoTensors(), route, draft);
  ExpectBlocks(draft, table, {{1, 2, 4, 7}, {1, 2, 7, 10}, {0, 2, 10, 13}, {1, 1, 13, 15}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 16);
}

// With two credits the third partition of tensor 1 takes its credit at 7, before tensor 0 is ready.
TEST(ByteSchedulerPlan, ChoosesEarlierWithMoreCredits) {
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft draft = ByteScheduler(TwoTensors(), route, {2, 2});
  const Timetable table = MakeTimetable(TwoTensors(), route, draft);
  ExpectBlocks(draft, table, {{1, 2, 4, 7}, {1, 2, 7, 10}, {1, 1, 10, 12}, {0, 2, 12, 15}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 17);
}

TEST(ByteSchedulerPlan, TunesToNoWorseThanAnyOnePartitionSize) {
  Random random(11);
  for (int instance = 0; instance < 50; ++instance) {
    const Profile profile = RandomProfile(random, 30, 1'000'000);
    const Workload work = MakeWorkload(profile);
    const Route route = AllReduceRoute({{RandomLine(random, profile)}});
    const auto seconds = [&](const ByteSchedulerTuning& tuning) {
      return MakeTimetable(work, route, ByteScheduler(work, route, tuning)).iteration_s;
    };
    const double tuned_s = seconds(TuneByteScheduler(work, route));
    // The largest tensor is a point of its grid: no partitions at all.
    const std::uint64_t largest = *std::max_element(work.bytes.begin(), work.bytes.end());
    EXPECT_LE(tuned_s, seconds({largest, 1}) * (1 + kRounding)) << "instance " << instance;
  }
}

// Units of one byte. The gap from 4 to 8 holds a startup and 3 units; then input first.
TEST(UsBytePlan, SizesABlockToEndAsTheNextGradientAppears) {
  const Workload work = TwoTensors();
  const CostLine line = Affine(1, 1);
  const Draft draft = UsByte(work, line, {1, {0, 1}});
  const Timetable table = MakeTimetable(work, AllReduceRoute(line), draft);
  ExpectBlocks(draft, table, {{1, 3, 4, 8}, {0, 2, 8, 11}, {1, 2, 11, 14}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 15);
}

// At 1 the gap of 0.5 is below a startup: one unit. At 3 tensor 1 fits whole before 10. At 8 the
// gap of 2 holds a startup and one unit of tensor 2.
TEST(UsBytePlan, SendsOneUnitWhereTheGapIsBelowAStartup) {
  const Workload work = ThreeTensors();
  const CostLine line = Affine(1, 1);
  const Draft draft = UsByte(work, line, {1, {0, 1, 2}});
  const Timetable table = MakeTimetable(work, AllReduceRoute(line), draft);
  ExpectBlocks(draft, table,
               {{2, 1, 1, 3}, {1, 4, 3, 8}, {2, 1, 8, 10}, {0, 1, 10, 12}, {2, 8, 12, 21}});
}

// With tensor 2 more urgent than tensor 1 its block of one unit grows at 3, by the 7 units that fit
// until 10, and pays no second startup.
TEST(UsBytePlan, GrowsTheBlockOfTheSameTensor) {
  const Workload work = ThreeTensors();
  const CostLine line = Affine(1, 1);
  const Draft draft = UsByte(work, line, {1, {0, 2, 1}});
  const Timetable table = MakeTimetable(work, AllReduceRoute(line), draft);
  ExpectBlocks(draft, table, {{2, 8, 1, 10}, {0, 1, 10, 12}, {1, 4, 12, 17}, {2, 2, 17, 20}});
}

TEST(UsBytePlan, SearchesPrioritiesThatAreAPermutationAndNoWorse) {
  Random random(12);
  int better = 0;
  for (int instance = 0; instance < 300; ++instance) {
    const Profile profile = RandomProfile(random, 20, 1'000'000);
    const Workload work = MakeWorkload(profile);
    const CostLine line{{RandomLine(random, profile)}};
    const std::uint64_t unit = work.element_bytes * (1 + random.Below(100'000));
    const auto seconds = [&](const UsByteTuning& tuning) {
      return MakeTimetable(work, AllReduceRoute(line), UsByte(work, line, tuning)).iteration_s;
    };
    UsByteTuning plain{unit, {}};
    for (std::uint32_t l = 0; l < work.size(); ++l) plain.priorities.push_back(l);
    const UsByteTuning searched = SearchPriorities(work, line, unit);
    std::vector<std::uint32_t> sorted = searched.priorities;
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(sorted, plain.priorities) << "instance " << instance;
    ASSERT_LE(seconds(searched), seconds(plain) * (1 + kRounding)) << "instance " << instance;
    if (seconds(searched) < seconds(plain) * (1 - 1e-6)) ++better;
  }
  EXPECT_GT(better, 10);
}

}  // namespace
}  // namespace headrace::plan
