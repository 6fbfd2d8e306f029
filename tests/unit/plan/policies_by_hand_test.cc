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
  const Draft draft = Bsp(TwoTensors(), AllReduceRoute(Affine(1, 1)), {});
  const Timetable table = MakeTimetable(TwoTensors(), AllReduceRoute(Affine(1, 1)), draft);
  ExpectBlocks(draft, table, {{0, 7, 8, 16}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 16 + 2);
}

// Halves take half of 1 + m. Reduce-scatters: tensor 1 from 4 to 7, tensor 0 from 8 to 9.5; then
// the all-gather of tensor 0 until 11, of tensor 1 until 14.
TEST(DearPlan, ScattersAsReadyAndGathersInputFirst) {
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft draft = Dear(TwoTensors(), route, {.bound_s = 0, .settings = {.unit_bytes = 1}});
  const Timetable table = MakeTimetable(TwoTensors(), route, draft);
  ExpectBlocks(draft, table, {{1, 5, 4, 7}, {0, 2, 8, 9.5}, {0, 2, 9.5, 11}, {1, 5, 11, 14}});
  EXPECT_EQ(draft.blocks[1].kind, Collective::kReduceScatter);
  EXPECT_EQ(draft.blocks[2].kind, Collective::kAllGather);
  EXPECT_DOUBLE_EQ(table.iteration_s, 14 + 1);
}

TEST(DearPlan, SendsWholeGroupsWhereBlocksDoNotComeApart) {
  Route route = AllReduceRoute(Affine(1, 1));
  route.halves = false;
  const Draft draft = Dear(TwoTensors(), route, {.bound_s = 0, .settings = {.unit_bytes = 1}});
  EXPECT_FALSE(draft.HasHalves());
  EXPECT_EQ(draft.blocks.size(), 2u);
}

// An all-gather waits for all reduce-scatters, on whatever lanes: pushes until 10 and 13, pulls of
// 3 and 6 from 13 on.
TEST(DearPlan, PushesAsReadyAndPullsInputFirstOnServers) {
  const Route route = ParameterServerRoute(Affine(1, 1), Affine(1, 1), Placement::kExtra);
  const Draft draft = Dear(TwoTensors(), route, {.bound_s = 0, .settings = {.unit_bytes = 1}});
  const Timetable table = MakeTimetable(TwoTensors(), route, draft);
  ExpectBlocks(draft, table, {{1, 5, 4, 10}, {0, 2, 10, 13}, {0, 2, 13, 16}, {1, 5, 16, 22}});
}

TEST(WfbpPlan, SendsEachTensorAsItIsReadyAndWaitsForAll) {
  const Draft draft = Wfbp(TwoTensors(), AllReduceRoute(Affine(1, 1)), {});
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
  const Draft draft = MgWfbp(work, route, {});
  const Timetable table = MakeTimetable(work, route, draft);
  ExpectBlocks(draft, table, {{2, 3, 2, 7}, {0, 5, 7, 14}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 14 + 4);
}

TEST(MgWfbpPlan, IsWfbpWhereStartupsAreFreeAndTheLaneIsFast) {
  const Workload work = ThreeTensors();
  const Draft draft = MgWfbp(work, AllReduceRoute(Affine(0, 1e-6)), {});
  EXPECT_EQ(draft.blocks.size(), work.size());
}

// a = 1, partitions of 2 bytes, one credit: tensor 0 overtakes the last partition of tensor 1.
TEST(ByteSchedulerPlan, LetsTheInputOvertakeAtPartitionBorders) {
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft draft = ByteScheduler(TwoTensors(), route, ByteSchedulerTuning{2, 1});
  const Timetable table = MakeTimetable(TwoTensors(), route, draft);
  ExpectBlocks(draft, table, {{1, 2, 4, 7}, {1, 2, 7, 10}, {0, 2, 10, 13}, {1, 1, 13, 15}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 16);
}

// With two credits the third partition of tensor 1 takes its credit at 7, before tensor 0 is ready.
TEST(ByteSchedulerPlan, ChoosesEarlierWithMoreCredits) {
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft draft = ByteScheduler(TwoTensors(), route, ByteSchedulerTuning{2, 2});
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
  const PiecewiseCost line = Affine(1, 1);
  const Draft draft = UsByte(work, line, {1, {0, 1}});
  const Timetable table = MakeTimetable(work, AllReduceRoute(line), draft);
  ExpectBlocks(draft, table, {{1, 3, 4, 8}, {0, 2, 8, 11}, {1, 2, 11, 14}});
  EXPECT_DOUBLE_EQ(table.iteration_s, 15);
}

// At 1 the gap of 0.5 is below a startup: one unit. At 3 tensor 1 fits whole before 10. At 8 the
// gap of 2 holds a startup and one unit of tensor 2.
TEST(UsBytePlan, SendsOneUnitWhereTheGapIsBelowAStartup) {
  const Workload work = ThreeTensors();
  const PiecewiseCost line = Affine(1, 1);
  const Draft draft = UsByte(work, line, {1, {0, 1, 2}});
  const Timetable table = MakeTimetable(work, AllReduceRoute(line), draft);
  ExpectBlocks(draft, table,
               {{2, 1, 1, 3}, {1, 4, 3, 8}, {2, 1, 8, 10}, {0, 1, 10, 12}, {2, 8, 12, 21}});
}

// With tensor 2 more urgent than tensor 1 its block of one unit grows at 3, by the 7 units that fit
// until 10, and pays no second startup.
TEST(UsBytePlan, GrowsTheBlockOfTheSameTensor) {
  const Workload work = ThreeTensors();
  const PiecewiseCost line = Affine(1, 1);
  const Draft draft = UsByte(work, line, {1, {0, 2, 1}});
  const Timetable table = MakeTimetable(work, AllReduceRoute(line), draft);
  ExpectBlocks(draft, table, {{2, 8, 1, 10}, {0, 1, 10, 12}, {1, 4, 12, 17}, {2, 2, 17, 20}});
}

DraftOptions With(const PolicySettings& settings) { return {.bound_s = 0, .settings = settings}; }

TEST(DdpPlan, ClosesAGroupWithTheTensorThatReachesItsSize) {
  const Workload work = ThreeTensors();
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft draft = Ddp(work, route, With({.unit_bytes = 6}));
  EXPECT_TRUE(draft.barrier);
  ExpectBlocks(draft, MakeTimetable(work, route, draft), {{2, 10, 1, 12}, {0, 5, 12, 18}});
}

// In MiB, input first: 10, 0.5, 24.5, 0.5, 0.75. The first group needs 1, the others 25.
TEST(DdpPlan, HasASmallFirstGroup) {
  constexpr std::uint64_t kMiB = 1 << 20;
  const Profile profile = ProfileOf({{10 * kMiB, 1, 1},
                                     {kMiB / 2, 1, 1},
                                     {49 * kMiB / 2, 1, 1},
                                     {kMiB / 2, 1, 1},
                                     {kMiB * 3 / 4, 1, 1}},
                                    DType::kUInt8);
  const Draft draft = Ddp(MakeWorkload(profile), AllReduceRoute(Affine(0, 0)), {});
  ASSERT_EQ(draft.blocks.size(), 3u);
  EXPECT_EQ(draft.blocks[0].bytes, kMiB * 5 / 4);
  EXPECT_EQ(draft.blocks[1].bytes, 25 * kMiB);
  EXPECT_EQ(draft.blocks[2].bytes, 10 * kMiB);
}

TEST(HorovodPlan, FusesWhatBecomesReadyInOneCycle) {
  const Workload work = TwoTensors();  // ready at 4 and 8
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft one = Horovod(work, route, With({.cycle_s = 10}));
  EXPECT_TRUE(one.barrier);
  ExpectBlocks(one, MakeTimetable(work, route, one), {{0, 7, 8, 16}});
  EXPECT_EQ(Horovod(work, route, With({.cycle_s = 5})).blocks.size(), 2u);
  EXPECT_EQ(Horovod(work, route, With({.unit_bytes = 6, .cycle_s = 10})).blocks.size(), 2u);
  EXPECT_EQ(Horovod(work, route, {}).blocks.size(), 2u);  // a cycle of a millisecond
}

// In one cycle, but not more than 128 MiB.
TEST(HorovodPlan, FusesAsMuchAsItsBufferHolds) {
  const auto blocks_of = [](std::size_t tensors_count, std::uint64_t mib) {
    const std::vector<Row> rows(tensors_count, Row{mib << 20, 1, 1});
    const Workload work = MakeWorkload(ProfileOf(rows, DType::kUInt8));
    return Horovod(work, AllReduceRoute(Affine(0, 0)), With({.cycle_s = 100})).blocks.size();
  };
  EXPECT_EQ(blocks_of(2, 64), 1u);
  EXPECT_EQ(blocks_of(2, 65), 2u);
}

TEST(P3Plan, SlicesAndLetsTheInputOvertake) {
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft draft = P3(TwoTensors(), route, With({.unit_bytes = 2}));
  EXPECT_FALSE(draft.barrier);
  ExpectBlocks(draft, MakeTimetable(TwoTensors(), route, draft),
               {{1, 2, 4, 7}, {1, 2, 7, 10}, {0, 2, 10, 13}, {1, 1, 13, 15}});
}

TEST(P3Plan, HasThePapersSlicesUnlessTheyAreTooMany) {
  const Route route = AllReduceRoute(Affine(0, 0));
  const Workload small = MakeWorkload(ProfileOf({{120'000, 1, 1}}));
  EXPECT_EQ(P3(small, route, {}).blocks.size(), 3u);
  EXPECT_EQ(P3(small, route, {}).blocks[0].bytes, 200'000u);
  const Workload large = MakeWorkload(ProfileOf({{1'000'000'000, 1, 1}}));
  EXPECT_LE(P3(large, route, {}).blocks.size(), 4096u);
}

// Push and pull run side by side: a slice is pushed while the one before is pulled.
TEST(P3Plan, KeepsTheStagesOfARouteBusy) {
  const Route servers = ParameterServerRoute(Affine(1, 0), Affine(1, 0), Placement::kExtra);
  const Workload work = MakeWorkload(ProfileOf({{4, 1, 1}}, DType::kUInt8));
  const Draft draft = P3(work, servers, With({.unit_bytes = 1}));
  EXPECT_EQ(draft.in_flight_max, 2u);
  EXPECT_DOUBLE_EQ(MakeTimetable(work, servers, draft).iteration_s, 1 + 4 + 1 + 1);
}

// Two partitions of 2 bytes in flight: 4 bytes of tensor 1 at 4; at 9 tensor 0 and what is left.
TEST(ByteSchedulerFusedPlan, SharesAStartupAmongThePartitionsInFlight) {
  const Route route = AllReduceRoute(Affine(1, 1));
  const Draft draft =
      ByteSchedulerFused(TwoTensors(), route, With({.unit_bytes = 2, .credits = 2}));
  EXPECT_FALSE(draft.barrier);
  const Timetable table = MakeTimetable(TwoTensors(), route, draft);
  ExpectBlocks(draft, table, {{1, 4, 4, 9}, {0, 3, 9, 13}});
  EXPECT_EQ(draft.RangesOf(draft.blocks[1]).size(), 2u);
  EXPECT_DOUBLE_EQ(table.iteration_s, 15);
}

TEST(ByteSchedulerFusedPlan, TunesToNoWorseThanGivenWindows) {
  Random random(13);
  int better = 0;
  for (int instance = 0; instance < 50; ++instance) {
    const Profile profile = RandomProfile(random, 30, 1'000'000);
    const Workload work = MakeWorkload(profile);
    const Route route = AllReduceRoute({{RandomLine(random, profile)}});
    const auto seconds = [&](const PolicySettings& settings) {
      const Draft draft = ByteSchedulerFused(work, route, With(settings));
      return MakeTimetable(work, route, draft).iteration_s;
    };
    const std::uint64_t largest = *std::max_element(work.bytes.begin(), work.bytes.end());
    const double tuned = seconds({});
    for (const std::uint32_t credits : {1U, 4U, 16U}) {
      for (const std::uint64_t size : {largest, WholeElements(1e4, work.element_bytes)}) {
        const double window = seconds({.unit_bytes = size, .credits = credits});
        // Sizes on its grid only: another one may be a little better.
        EXPECT_LE(tuned, window * (size == largest ? 1 + kRounding : 1.1))
            << "instance " << instance << ", " << credits << " of " << size;
        better += tuned < window * 0.9 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(better, 20);
}

TEST(UsBytePlan, SearchesPrioritiesThatAreAPermutationAndNoWorse) {
  Random random(12);
  int better = 0;
  for (int instance = 0; instance < 300; ++instance) {
    const Profile profile = RandomProfile(random, 20, 1'000'000);
    const Workload work = MakeWorkload(profile);
    const PiecewiseCost line{{RandomLine(random, profile)}};
    const std::uint64_t unit = work.element_bytes * (1 + Below(random, 100'000));
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
