// A route of two stages in a pipeline: the bound, the guarantee, and brute force on small
// instances.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "service/plan/bound.h"
#include "service/plan/exact.h"
#include "service/plan/reshape.h"
#include "tests/unit/plan/reference.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

Route TwoStages(const CostPiece& first, const CostPiece& second) {
  return {.lanes = {"node", "network"},
          .stages = {{.name = "sum", .rails = {{0, {{first}}}}},
                     {.name = "network", .rails = {{1, {{second}}}}}}};
}

// A first stage that is no slower than the second.
CostPiece QuickerThan(const CostPiece& line, Random& random) {
  return {0, line.startup_s * random.Unit(), line.s_per_byte * random.Unit()};
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

// The optimum of the slower lane, cut into pieces of at most sqrt(M a2 / b1) bytes, exceeds the
// bound by a fill of a1 and twice sqrt(M a2 b1) at most; `exact` is no worse. No more than 512
// pieces are made, so where more would be better a 512th of the first stage's time may come on top.
TEST(TwoStages, KeepTheGuarantee) {
  Random random(12);
  for (int instance = 0; instance < 150; ++instance) {
    const Profile profile = RandomProfile(random, 30, 2'000'000);
    const CostPiece second = RandomLine(random, profile);
    const CostPiece first = QuickerThan(second, random);
    const Workload work = MakeWorkload(profile);
    const Route route = TwoStages(first, second);
    const auto bytes = static_cast<double>(work.total_bytes());
    const double guaranteed_s = LowerBound(work, route) + first.startup_s +
                                2 * std::sqrt(bytes * second.startup_s * first.s_per_byte) +
                                first.s_per_byte * bytes / 512;
    // Cutting between elements only may cost a few elements' time.
    const double elements_s = 16 * static_cast<double>(work.element_bytes) * second.s_per_byte;
    ASSERT_LE(PlannedSeconds(work, route), guaranteed_s * (1 + kRounding) + elements_s) << instance;
  }
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
