// Gradients of a plan that are matrices, and cross between nodes as two factors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "tests/unit/service/dispatch/compressed_fleet.h"

namespace headrace::support {
namespace {

// The first and the third gradient as matrices of 50 rows. Both cross as factors, each by itself.
constexpr std::uint64_t kRows = 50;
constexpr Codec kOfRankThree(Codec::kPowerSgd, 3);

struct FactoredFleet : CompressedFleet {
  explicit FactoredFleet(Codec codec, std::uint32_t rails = 1, std::uint64_t residuals = 0,
                         std::uint64_t iterations_before = 0, std::uint32_t factors_rank = 0)
      : CompressedFleet(codec, rails, residuals, iterations_before, kRows, 0, 1, factors_rank) {}

  // What a rank keeps: residuals and right factors.
  std::span<float> Kept(std::size_t client) {
    const std::uint64_t bytes = service::RightFactorOffsets(*layout, kRankKept).back();
    return clients[client]->Elements<float>().subspan(kKeptAt / sizeof(float),
                                                      bytes / sizeof(float));
  }
  static constexpr std::uint64_t kKeptAt = 1 << 16;
  static constexpr std::uint32_t kRankKept = 3;
};

std::shared_ptr<const plan::Plan> FactoredPlan(const Blocks& blocks, std::uint32_t version,
                                               Codec codec = kOfRankThree) {
  plan::Plan plan = *PlanOf(blocks, version);
  plan.codecs = {{codec, 0, 3}};
  return std::make_shared<const plan::Plan>(std::move(plan));
}
const Blocks kTogether{{{1, 0, kSmall}}, {{0, 0, kLarge}, {2, 0, kLarge}}};

TEST(CompressedMatrices, MatricesCrossAsFactorsAndNothingIsLost) {
  constexpr int kIterations = 12;
  for (const std::uint32_t rails : {1U, 3U}) {
    FactoredFleet fleet(Codec::kNone, rails);
    fleet.AdoptPlan(FactoredPlan(kTogether, 2), 1);
    std::vector<double> applied(kElementsInAll);
    double worst = 0;
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      const std::vector<float> sums = fleet.Iterate();
      for (std::size_t i = 0; i < kElementsInAll; ++i) {
        applied[i] += double{sums[i]};
        worst = std::max(worst, std::abs(double{sums[i]} - double{fleet.Sum(i)}));
      }
    }
    EXPECT_GT(worst, 1e-3) << "something was left out";
    // Of several rails each of the two matrices takes another, whole.
    const std::uint64_t factors = 3 * (kRows + kLarge / kRows) * sizeof(float);
    for (std::uint32_t rail = 0; rail < rails; ++rail) {
      const std::uint64_t sent = fleet.cluster.exchange(0, rail).counters().bytes_sent;
      EXPECT_EQ(sent > kIterations * factors, rail < 2) << sent << " over rail " << rail;
    }
    // What is left over comes with the first sum that is exact.
    fleet.AdoptPlan(Codec::kNone, 3, kIterations + 1);
    const std::vector<float> last = fleet.Iterate();
    const std::vector<float> exact = fleet.Iterate();
    for (std::size_t i = 0; i < kElementsInAll; ++i) {
      ASSERT_NEAR(applied[i] + double{last[i]}, (kIterations + 1) * double{fleet.Sum(i)}, 2e-4)
          << rails << " rails, element " << i;
      ASSERT_NEAR(exact[i], fleet.Sum(i), 1e-5) << i;
    }
  }
}

TEST(CompressedMatrices, AMatrixThatThePlanCutsApartCrossesAsItIs) {
  FactoredFleet fleet(Codec::kNone);
  const Blocks cut{{{1, 0, kSmall}, {0, 0, kLarge / 2}},
                   {{0, kLarge / 2, kLarge / 2}, {2, 0, kLarge}}};
  fleet.AdoptPlan(FactoredPlan(cut, 2), 1);
  const std::vector<float> sums = fleet.Iterate();
  double worst = 0;
  for (std::size_t i = 0; i < kElementsInAll; ++i) {
    const double error = std::abs(double{sums[i]} - double{fleet.Sum(i)});
    if (i < kLarge + kSmall) {
      ASSERT_LE(error, 1e-6) << i;
    }
    worst = std::max(worst, error);
  }
  EXPECT_GT(worst, 1e-3);
}

// What is left out of a matrix is of its elements, whatever comes next.
TEST(CompressedMatrices, MatricesTakeTurnsWithOtherCodecsAndRanks) {
  FactoredFleet fleet(Codec::kNone);
  const Codec codecs[] = {kOfRankThree, Codec::kInt8, {Codec::kPowerSgd, 1},
                          kOfRankThree, Codec::kTopK, Codec::kLossless};
  std::vector<double> applied(kElementsInAll);
  std::uint32_t version = 1;
  for (const Codec& codec : codecs) {
    ++version;
    fleet.AdoptPlan(FactoredPlan(kTogether, version, codec), version - 1);
    const std::vector<float> sums = fleet.Iterate();
    for (std::size_t i = 0; i < kElementsInAll; ++i) applied[i] += double{sums[i]};
  }
  for (std::size_t i = 0; i < kElementsInAll; ++i) {
    ASSERT_NEAR(applied[i], 6 * double{fleet.Sum(i)}, 2e-4) << i;
  }
}

// A service that comes after another goes on with what ranks have kept, to the same bits.
TEST(CompressedMatrices, RightFactorsThatRanksKeepOutliveAService) {
  constexpr std::uint64_t kAt = FactoredFleet::kKeptAt;
  FactoredFleet undisturbed(Codec::kNone, 1, kAt, 0, FactoredFleet::kRankKept);
  undisturbed.AdoptPlan(FactoredPlan(kTogether, 2), 1);
  undisturbed.Iterate();
  undisturbed.Iterate();
  const auto goes_on = [&](bool with_factors, Codec codec) {
    FactoredFleet later(Codec::kNone, 1, kAt, 2, FactoredFleet::kRankKept);
    for (const std::size_t client : {std::size_t{0}, std::size_t{2}}) {
      const std::span<float> kept = undisturbed.Kept(client);
      EXPECT_NE(kept.back(), 0) << "the last gradient's right factor is the last of all";
      EXPECT_NE(kept[0], 0);
      std::ranges::copy(kept.first(with_factors ? kept.size() : kElementsInAll),
                        later.Kept(client).begin());
    }
    later.AdoptPlan(FactoredPlan(kTogether, 2, codec), 1);
    return later.Iterate();
  };
  const std::vector<float> with = goes_on(true, kOfRankThree);
  const std::vector<float> without = goes_on(false, kOfRankThree);
  const std::vector<float> fewer = goes_on(true, {Codec::kPowerSgd, 2});
  const std::vector<float> fewer_without = goes_on(false, {Codec::kPowerSgd, 2});
  const std::vector<float> more = goes_on(true, {Codec::kPowerSgd, 4});
  const std::vector<float> more_without = goes_on(false, {Codec::kPowerSgd, 4});
  EXPECT_EQ(with, undisturbed.Iterate());
  EXPECT_NE(without, with);
  EXPECT_NE(fewer, fewer_without) << "of a smaller rank it is the first columns";
  EXPECT_EQ(more, more_without) << "there is no room for it";
}

TEST(CompressedMatrices, FactorsAreBookedWithTheResidualsAndOnceForEachRank) {
  FactoredFleet fleet(Codec::kNone);
  const auto booked = [&fleet] {
    std::vector<std::uint64_t> bytes;
    for (const auto* each : fleet.cluster.node(0).rpc().Of<service::ResidualsAllocated>()) {
      EXPECT_EQ(each->session, fleet.clients[0]->id());
      bytes.push_back(each->bytes);
    }
    return bytes;
  };
  const auto factors = [](std::uint64_t rank) {
    return 2 * rank * (kRows + 2 * kLarge / kRows) * sizeof(float);
  };
  const auto freed = [&fleet] {
    std::vector<std::uint64_t> bytes;
    for (const auto* each : fleet.cluster.node(0).rpc().Of<service::ResidualsFreed>()) {
      EXPECT_EQ(each->session, fleet.clients[0]->id());
      bytes.push_back(each->bytes);
    }
    return bytes;
  };
  const std::uint64_t residuals = kElementsInAll * sizeof(float);
  fleet.AdoptPlan(FactoredPlan(kTogether, 2), 1);
  fleet.Iterate();
  EXPECT_EQ(booked(), (std::vector<std::uint64_t>{residuals, factors(3)}));
  fleet.AdoptPlan(FactoredPlan(kTogether, 3), 2);
  fleet.Iterate();
  EXPECT_EQ(booked().size(), 2U);
  fleet.AdoptPlan(FactoredPlan(kTogether, 4, {Codec::kPowerSgd, 2}), 3);
  fleet.Iterate();
  EXPECT_EQ(booked(), (std::vector<std::uint64_t>{residuals, factors(3), factors(2)}));
  EXPECT_EQ(freed(), (std::vector<std::uint64_t>{factors(3)}));
  // Without them for a while the next sum of the same rank begins where the last one ended.
  fleet.AdoptPlan(Codec::kNone, 5, 4);
  fleet.Iterate();
  EXPECT_EQ(freed().size(), 1U);
}

// A plan of another rank may have been agreed on, and its room made, before it is in force.
TEST(CompressedMatrices, RoomForFactorsOfTheNextPlanIsNotFreed) {
  FactoredFleet fleet(Codec::kNone);
  fleet.AdoptPlan(FactoredPlan(kTogether, 2), 1);
  fleet.Iterate();
  fleet.AdoptPlan(FactoredPlan(kTogether, 3, {Codec::kPowerSgd, 2}), 2);
  fleet.Iterate();
  fleet.AdoptPlan(FactoredPlan(kTogether, 4), 4);
  std::vector<float> sums;
  for (int iteration = 3; iteration <= 5; ++iteration) sums = fleet.Iterate();
  EXPECT_EQ(fleet.cluster.node(0).rpc().Of<service::ResidualsAllocated>().size(), 4U);
  EXPECT_EQ(fleet.cluster.node(0).rpc().Of<service::ResidualsFreed>().size(), 2U);
}

}  // namespace
}  // namespace headrace::support
