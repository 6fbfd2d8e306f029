// Cost lines of clusters that are not at hand.
#include "service/plan/scale.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/expect_text.h"
#include "tests/unit/plan/support.h"

namespace headrace::plan {
namespace {

// Latency 1, 10 bytes/s between nodes; latency 0.1, 100 bytes/s inside.
Cluster ClusterOf(std::uint32_t nodes, std::uint32_t ranks) {
  return {nodes, ranks, 1, 10, 0.1, 100};
}

CostPiece LineOf(const Cluster& cluster, AllReduceModel algorithm) {
  return AloneLine(ClusterRoute(cluster, algorithm)).pieces.at(0);
}

TEST(ClusterCost, OfARingCountsAllRanks) {
  const CostPiece line = LineOf(ClusterOf(2, 2), AllReduceModel::kRing);
  EXPECT_DOUBLE_EQ(line.startup_s, 2 * 3 * 1.0);
  EXPECT_DOUBLE_EQ(line.s_per_byte, 2 * 3 / 4.0 / 10);
}

TEST(ClusterCost, OfHalvingDoublingCountsStepsInsideAndOutside) {
  const CostPiece line = LineOf(ClusterOf(8, 4), AllReduceModel::kHalvingDoubling);
  EXPECT_DOUBLE_EQ(line.startup_s, 2 * 3 * 1.0 + 2 * 2 * 0.1);
  EXPECT_DOUBLE_EQ(line.s_per_byte, 2 * 7 / 8.0 / 10 + 2 * 3 / 4.0 / 100);
}

TEST(ClusterCost, OfHalvingDoublingFoldsInWhatIsNoPowerOfTwo) {
  const CostPiece line = LineOf(ClusterOf(6, 1), AllReduceModel::kHalvingDoubling);
  EXPECT_DOUBLE_EQ(line.startup_s, 2 * 2 * 1.0 + 2);
  EXPECT_DOUBLE_EQ(line.s_per_byte, (2 * 3 / 4.0 + 2) / 10);
}

TEST(ClusterCost, OfATreeGrowsWithItsDepth) {
  const CostPiece line = LineOf(ClusterOf(5, 3), AllReduceModel::kTree);
  EXPECT_DOUBLE_EQ(line.startup_s, 2 * 3 * 1.0 + 2 * 2 * 0.1);
  EXPECT_DOUBLE_EQ(line.s_per_byte, 2.0 / 10);
}

TEST(ClusterCost, OfTwoLevelsIsThreeStagesOnTwoLanes) {
  const Route route = ClusterRoute(ClusterOf(4, 8), AllReduceModel::kTwoLevel);
  ASSERT_EQ(route.stages.size(), 3u);
  EXPECT_EQ(route.lanes.size(), 2u);
  EXPECT_EQ(StageCost(route.stages[0]), Affine(7 * 0.1, 7 / 8.0 * (1 / 100.0)));
  EXPECT_EQ(StageCost(route.stages[1]), Affine(2 * 3 * 1.0, 2 * 3 / 4.0 * (1 / 10.0)));
  EXPECT_EQ(route.stages[0].rails, route.stages[2].rails);
}

TEST(ClusterCost, OfOneRankIsNothing) {
  for (const AllReduceModel algorithm : kAllReduceModels) {
    const CostPiece line = LineOf(ClusterOf(1, 1), algorithm);
    EXPECT_EQ(line.startup_s, 0) << Name(algorithm);
    EXPECT_EQ(line.s_per_byte, 0) << Name(algorithm);
  }
}

TEST(ClusterCost, DoesNotFallAsTheClusterGrowsFrom8To8192Ranks) {
  for (const AllReduceModel algorithm : kAllReduceModels) {
    double before_s = 0;
    for (std::uint32_t nodes = 1; nodes <= 1024; nodes *= 2) {
      const Cluster cluster = ClusterOf(nodes, 8);
      ASSERT_TRUE(CheckCluster(cluster).ok());
      const double seconds = AloneLine(ClusterRoute(cluster, algorithm)).Seconds(1'000'000);
      EXPECT_GE(seconds, before_s) << Name(algorithm) << " " << nodes;
      before_s = seconds;
    }
  }
}

TEST(ClusterCost, OfServersDependsOnWhereTheyStand) {
  const Route colocated = ClusterServerRoute(ClusterOf(4, 1), Placement::kColocated, 0);
  EXPECT_EQ(colocated.lanes.size(), 1u);
  EXPECT_EQ(StageCost(colocated.stages[0]), Affine(1, 3 / 4.0 * (1 / 10.0)));
  const Route extra = ClusterServerRoute(ClusterOf(4, 1), Placement::kExtra, 2);
  EXPECT_EQ(extra.lanes.size(), 2u);
  EXPECT_EQ(StageCost(extra.stages[1]), Affine(1, 2 * (1 / 10.0)));
  const Route nodes = ClusterServerRoute(ClusterOf(4, 2), Placement::kExtra, 4);
  EXPECT_EQ(nodes.stages.size(), 4u);
  EXPECT_TRUE(CheckRoute(nodes).ok());
}

TEST(Cluster, IsRefusedWithTheReason) {
  const auto reason = [](const Cluster& cluster) {
    const Error error = CheckCluster(cluster).error();
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.text();
    return error.text();
  };
  EXPECT_TEXT(reason(ClusterOf(0, 1)));
  EXPECT_TEXT(reason(ClusterOf(8192, 2)), "16384", "8192");
  EXPECT_TEXT(reason({2, 1, 1, 0, 1, 1}));
  EXPECT_TEXT(reason({2, 1, -1, 1, 1, 1}));
}

TEST(AllReduceModel, HasANameThatReadsBack) {
  for (const AllReduceModel algorithm : kAllReduceModels) {
    EXPECT_EQ(AllReduceModelNamed(Name(algorithm)), algorithm);
  }
  EXPECT_EQ(AllReduceModelNamed("star"), std::nullopt);
}

}  // namespace
}  // namespace headrace::plan
