// Routes of two and three stages in a pipeline: the bound, the guarantees, and brute force on small
// instances.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "service/plan/bound.h"
#include "service/plan/exact.h"
#include "service/plan/reshape.h"
#include "service/plan/sweep.h"
#include "tests/unit/plan/reference.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

Route TwoStages(const CostPiece& first, const CostPiece& second) {
  return {.lanes = {"node", "network"},
          .stages = {{.name = "sum", .rails = {{0, {{first}}}}},
                     {.name = "network", .rails = {{1, {{second}}}}}}};
}

// What a job of several ranks a node has: from the network a block returns to the node's lane.
Route ThreeStages(const CostPiece& first, const CostPiece& second) {
  Route route = TwoStages(first, second);
  route.stages.push_back({.name = "hand out", .rails = {{0, {{first}}}}});
  return route;
}

// A first stage that is no slower than the second, or than this share of it.
CostPiece QuickerThan(const CostPiece& line, Random& random, double share = 1) {
  return {0, share * line.startup_s * random.Unit(), share * line.s_per_byte * random.Unit()};
}

// S: the optimum of the network's lane alone.
double NetworkAloneSeconds(const Workload& work, const CostPiece& line) {
  const double computing_s = work.backward_s() + work.forward_s();
  return SweepCuts(work, line.startup_s, line.s_per_byte, computing_s).iteration_s;
}

double PlannedSeconds(const Workload& work, const Route& route) {
  const Draft draft = Exact(work, route, {.bound_s = LowerBound(work, route)});
  return MakeTimetable(work, route, draft).iteration_s;
}

TEST(TwoStages, LieBetweenTheBoundAndBruteForceOnAFewElements) {
  Random random(11);
  int equal = 0;
  constexpr int kTwoStageInstances = 300;
  double worst = 1;
  for (int instance = 0; instance < kTwoStageInstances; ++instance) {
    const Profile profile = RandomProfile(random, 3, 2, DType::kUInt8);
    const CostPiece second = RandomLine(random, profile);
    const CostPiece first = QuickerThan(second, random);
    const Workload work = MakeWorkload(profile);
    const Route route = TwoStages(first, second);
    const double best_s = BruteForceTwoStages(work, first, second);
    ASSERT_LE(LowerBound(work, route), best_s * (1 + kRounding)) << instance;
    const double planned_s = PlannedSeconds(work, route);
    ASSERT_GE(planned_s, best_s * (1 - kRounding)) << instance;
    worst = std::max(worst, planned_s / best_s);
    if (planned_s <= best_s * (1 + kRounding)) ++equal;
  }
  EXPECT_GT(equal, kTwoStageInstances * 9 / 10);
  EXPECT_LT(worst, 1.25);
}

// A third stage on the lane of the first, which takes at most half of the network's time.
TEST(ThreeStages, LieBetweenTheBoundAndBruteForceOnAFewElements) {
  Random random(15);
  int equal = 0;
  constexpr int kThreeStageInstances = 120;
  double worst = 1;
  for (int instance = 0; instance < kThreeStageInstances; ++instance) {
    const Profile profile = RandomProfile(random, 3, 2, DType::kUInt8);
    const CostPiece second = RandomLine(random, profile);
    const CostPiece first = QuickerThan(second, random, 0.5);
    const Workload work = MakeWorkload(profile);
    const Route route = ThreeStages(first, second);
    const double best_s = BruteForceThreeStages(work, first, second);
    ASSERT_LE(LowerBound(work, route), best_s * (1 + kRounding)) << instance;
    const double planned_s = PlannedSeconds(work, route);
    ASSERT_GE(planned_s, best_s * (1 - kRounding)) << instance;
    worst = std::max(worst, planned_s / best_s);
    if (planned_s <= best_s * (1 + kRounding)) ++equal;
  }
  EXPECT_GT(equal, kThreeStageInstances * 8 / 10);
  EXPECT_LT(worst, 1.25);
}

// By hand: 4 bytes are there at 2 s, and 1 s of forward pass follows. As one block they take 1 + 4
// stages' seconds in the node each way and 10 + 8 between nodes; as two they need two startups
// there and 1 + 1 s for at least a byte on either side.
TEST(ThreeStages, AreBoundedByTheFirstTensorInOneBlockOrInTwo) {
  const Workload work = MakeWorkload(ProfileOf({{4, 2, 1}}, DType::kUInt8));
  const double in_one = 2 + (1 + 4) + (10 + 8) + (1 + 4) + 1;
  EXPECT_DOUBLE_EQ(LowerBound(work, ThreeStages({0, 1, 1}, {0, 10, 2})), in_one);
  EXPECT_DOUBLE_EQ(BruteForceThreeStages(work, {0, 1, 1}, {0, 10, 2}), in_one);
  const double in_two = 2 + (1 + 1) + (2 * 3 + 8) + (1 + 1) + 1;
  EXPECT_DOUBLE_EQ(LowerBound(work, ThreeStages({0, 1, 1}, {0, 3, 2})), in_two);
}

// The optimum of the slower lane, cut into pieces of at most sqrt(M a2 / b1) bytes, exceeds S by a
// fill of a1 and twice sqrt(M a2 b1) at most, which is at most the share sqrt(b1 / b2) of S, since
// S has a2 + b2 M. `exact` is no worse. No more than 512 pieces are made; where more would be
// better, startups and the fill exceed S by a 256th of the first stage's time, which is less.
TEST(TwoStages, KeepTheGuarantee) {
  Random random(12);
  int near = 0;
  for (int instance = 0; instance < 150; ++instance) {
    const Profile profile = RandomProfile(random, 30, 2'000'000);
    const CostPiece second = RandomLine(random, profile);
    const CostPiece first = QuickerThan(second, random);
    const Workload work = MakeWorkload(profile);
    const Route route = TwoStages(first, second);
    const auto bytes = static_cast<double>(work.total_bytes());
    const double alone_s = NetworkAloneSeconds(work, second);
    // Cutting between elements only: an element in the lane's optimum, and one in a piece.
    const double elements_s =
        static_cast<double>(work.element_bytes) * (first.s_per_byte + second.s_per_byte);
    const double planned_s = PlannedSeconds(work, route);
    const double guaranteed_s = alone_s + first.startup_s +
                                std::max(2 * std::sqrt(bytes * second.startup_s * first.s_per_byte),
                                         first.s_per_byte * bytes / 256);
    ASSERT_LE(planned_s, guaranteed_s * (1 + kRounding) + elements_s) << instance;
    const double ratio = 1 + std::sqrt(first.s_per_byte / second.s_per_byte);
    ASSERT_LE(planned_s, (ratio * alone_s + first.startup_s) * (1 + kRounding) + elements_s);
    ASSERT_LE(planned_s, ratio * LowerBound(work, route) * (1 + kRounding) + elements_s);
    if (planned_s > alone_s + first.startup_s + (guaranteed_s - alone_s) / 10) ++near;
  }
  // Where everything hides behind computing any plan would pass.
  EXPECT_GT(near, 15);
}

// Blocks that return to the node's lane end at most 6 times its longest stage later than on the
// network alone, whatever the blocks, where the lane takes half of the network's time at most.
TEST(ThreeStages, DelayTheNetworkBySixOfTheNodesStagesAtMost) {
  Random random(16);
  double worst = 0;
  for (int instance = 0; instance < 2000; ++instance) {
    const Profile profile = RandomProfile(random, 12, 64, DType::kUInt8);
    const Workload work = MakeWorkload(profile);
    const CostPiece second = RandomLine(random, profile);
    const double share = Below(random, 2) == 0 ? 0.5 : 0.5 * random.Unit();
    const CostPiece first{0, share * second.startup_s, share * second.s_per_byte};
    const Policy policies[] = {Policy::kWfbp, Policy::kP3, Policy::kMgWfbp, Policy::kByteScheduler};
    Draft draft = MakeDraft(policies[instance % 4], work, AllReduceRoute({{second}}), {});
    draft = Pieces(work, draft, 1 + Below(random, 3));
    draft.in_flight_max = 0;
    const Timetable alone = MakeTimetable(work, AllReduceRoute({{second}}), draft);
    const Timetable all = MakeTimetable(work, ThreeStages(first, second), draft);
    double longest_s = 0;
    for (const DraftBlock& block : draft.blocks) {
      longest_s = std::max(longest_s, first.Seconds(static_cast<double>(block.bytes)));
    }
    for (std::size_t block = 0; block < draft.blocks.size(); ++block) {
      const double late_s = all.end_s[block] - alone.end_s[block];
      ASSERT_LE(late_s, 6 * longest_s + all.end_s[block] * kRounding) << instance;
      if (longest_s > 0) worst = std::max(worst, late_s / longest_s);
    }
  }
  EXPECT_GT(worst, 2);  // a sum and a hand-out follow a release at least
}

// So pieces of at most sqrt(M a2 / (8 b1)) bytes exceed S by 6 a1 and 5 sqrt(M a2 b1) at most.
TEST(ThreeStages, KeepTheGuarantee) {
  Random random(17);
  int near = 0;
  for (int instance = 0; instance < 150; ++instance) {
    const Profile profile = RandomProfile(random, 30, 2'000'000);
    const CostPiece second = RandomLine(random, profile);
    const CostPiece first = QuickerThan(second, random, 0.5);
    const Workload work = MakeWorkload(profile);
    const Route route = ThreeStages(first, second);
    const auto bytes = static_cast<double>(work.total_bytes());
    const double alone_s = NetworkAloneSeconds(work, second);
    const double elements_s =
        static_cast<double>(work.element_bytes) * (6 * first.s_per_byte + second.s_per_byte);
    const double planned_s = PlannedSeconds(work, route);
    const double excess_s =
        6 * first.startup_s + std::max(5 * std::sqrt(bytes * second.startup_s * first.s_per_byte),
                                       first.s_per_byte * bytes * 7 / 512);
    ASSERT_LE(planned_s, (alone_s + excess_s) * (1 + kRounding) + elements_s) << instance;
    const double ratio = 1 + 2.5 * std::sqrt(first.s_per_byte / second.s_per_byte);
    const double guaranteed_s = ratio * alone_s + 6 * first.startup_s;
    ASSERT_LE(planned_s, guaranteed_s * (1 + kRounding) + elements_s) << instance;
    if (planned_s > alone_s + 2 * first.startup_s + excess_s / 20) ++near;
  }
  EXPECT_GT(near, 15);
}

// Behind each release the network waits for one first piece and never again; the pieces of a block
// number about the logarithm of its size.
TEST(TwoStages, PiecesThatGrowDelayTheNetworkByTheFirstOfThemOnly) {
  Random random(14);
  int asked = 0;
  for (int instance = 0; instance < 200; ++instance) {
    const Profile profile = RandomProfile(random, 30, 2'000'000);
    const CostPiece second = RandomLine(random, profile);
    const CostPiece first{0, second.startup_s * random.Unit(),
                          second.s_per_byte * (0.05 + 0.8 * random.Unit())};
    const Workload work = MakeWorkload(profile);
    const Route lane = AllReduceRoute({{second}});
    const double computing_s = work.backward_s() + work.forward_s();
    const Draft whole = ExactOnLane(work, second, computing_s).draft;
    const auto bytes = static_cast<double>(work.total_bytes());
    const double size = std::max(bytes / 400, second.startup_s / first.s_per_byte);
    const Draft graded = Graded(work, whole, {first, second}, size, false);
    if (graded.blocks.size() >= 512) continue;  // beyond, blocks stay whole
    ++asked;
    const double alone_s = MakeTimetable(work, lane, graded).iteration_s;
    const double both_s = MakeTimetable(work, TwoStages(first, second), graded).iteration_s;
    // A piece has an element at least, and whole ones.
    const double elements_s = static_cast<double>(graded.blocks.size() * work.element_bytes) *
                              (first.s_per_byte + second.s_per_byte);
    ASSERT_LE(both_s, (alone_s + first.Seconds(size)) * (1 + kRounding) + elements_s) << instance;
    const double extra = static_cast<double>(graded.blocks.size() - whole.blocks.size());
    const double each =
        1 + std::max(0.0, std::log(bytes / size)) / std::log(second.s_per_byte / first.s_per_byte);
    ASSERT_LE(extra, static_cast<double>(whole.blocks.size()) * each + 1) << instance;
  }
  EXPECT_GT(asked, 150);
}

TEST(TwoStages, TheBoundIsTheOptimumOfTheNetworkWhereTheNodeTakesNothing) {
  Random random(13);
  for (int instance = 0; instance < 100; ++instance) {
    const Profile profile = RandomProfile(random, 30, 2'000'000);
    const CostPiece line = RandomLine(random, profile);
    const Workload work = MakeWorkload(profile);
    const double alone_s = PlannedSeconds(work, AllReduceRoute({{line}}));
    const double bound_s = LowerBound(work, TwoStages({0, 0, 0}, line));
    const double elements_s = 16 * static_cast<double>(work.element_bytes) * line.s_per_byte;
    ASSERT_LE(bound_s, alone_s * (1 + kRounding)) << instance;
    ASSERT_GE(bound_s, alone_s * (1 - 1e-9) - elements_s) << instance;
  }
}

}  // namespace
}  // namespace headrace::plan
