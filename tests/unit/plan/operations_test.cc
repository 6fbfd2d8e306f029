// What single operations cost by the lines of two lanes.
#include "service/plan/operations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/support/expect_text.h"
#include "transport/exchange/choose.h"

namespace headrace::plan {
namespace {

constexpr double kBytes = 1200;

// A step 1 s and a byte 1 s between nodes; a byte of an all-reduce 1 s inside. Bytes that are
// summed between nodes cost nothing to speak of.
OperationNetwork NetworkOf(std::uint32_t nodes, std::uint32_t ranks) {
  return {.nodes = nodes,
          .ranks_per_node = ranks,
          .between_nodes = {0, 1, 1},
          .in_node = {0, 0, 1},
          .block_bytes = kBytes};
}

double Seconds(Collective kind, std::uint32_t nodes, std::uint32_t ranks,
               WireAlgorithm algorithm = WireAlgorithm::kDirect) {
  for (const OperationCost& cost : OperationCosts(kind, NetworkOf(nodes, ranks), kBytes)) {
    if (cost.algorithm == algorithm) return cost.seconds;
  }
  return -1;
}

TEST(OperationCost, InANodeIsThatOfTheBytesReadAndWritten) {
  // Of an all-reduce four ranks read and write each byte: eight times in all.
  EXPECT_DOUBLE_EQ(Seconds(Collective::kAllReduce, 1, 4), kBytes);
  EXPECT_DOUBLE_EQ(Seconds(kSend, 1, 4), kBytes * 2 / 8);
  EXPECT_DOUBLE_EQ(Seconds(Collective::kReduce, 1, 4), kBytes * 5 / 8);
  EXPECT_DOUBLE_EQ(Seconds(Collective::kReduceScatter, 1, 4), kBytes * 5 / 8);
  EXPECT_DOUBLE_EQ(Seconds(Collective::kAllGather, 1, 4), kBytes * 4 / 8);
  EXPECT_DOUBLE_EQ(Seconds(Collective::kBroadcast, 1, 4), kBytes * 4 / 8);
  EXPECT_DOUBLE_EQ(Seconds(kGather, 1, 4), kBytes * 6 / 8);
  EXPECT_DOUBLE_EQ(Seconds(kScatter, 1, 4), kBytes * 6 / 8);
  EXPECT_DOUBLE_EQ(Seconds(kAllToAll, 1, 4), kBytes * 6 / 8);
}

TEST(OperationCost, BetweenNodesOfOneRankIsStepsAndBytesOfTheBusiest) {
  constexpr double kSums = 1e-6;  // what summing may add
  EXPECT_NEAR(Seconds(kSend, 4, 1), 1 + kBytes, kSums);
  EXPECT_NEAR(Seconds(kAllToAll, 4, 1), 1 + kBytes * 3 / 4, kSums);
  EXPECT_NEAR(Seconds(Collective::kReduceScatter, 4, 1), 1 + kBytes * 3 / 4, kSums);
  EXPECT_NEAR(Seconds(Collective::kAllGather, 4, 1), 1 + kBytes * 3 / 4, kSums);
  EXPECT_NEAR(Seconds(Collective::kReduce, 4, 1), 1 + kBytes * 3, kSums);
  EXPECT_NEAR(Seconds(kGather, 4, 1), 1 + kBytes * 3, kSums);
  EXPECT_NEAR(Seconds(kScatter, 4, 1), 1 + kBytes * 3, kSums);
}

TEST(OperationCost, DependsOnTheAlgorithm) {
  constexpr double kSums = 1e-6;
  constexpr auto kRing = WireAlgorithm::kRing;
  constexpr auto kHalving = WireAlgorithm::kHalvingDoubling;
  EXPECT_NEAR(Seconds(Collective::kReduceScatter, 4, 1, kRing), 3 + kBytes * 3 / 4, kSums);
  EXPECT_NEAR(Seconds(Collective::kAllGather, 4, 1, kHalving), 2 + kBytes * 3 / 4, kSums);
  // Two nodes of six fold in with all they have, and get a sixth.
  EXPECT_NEAR(Seconds(Collective::kReduceScatter, 6, 1, kHalving), 4 + kBytes * (3 / 4.0 + 7 / 6.0),
              kSums);
  EXPECT_NEAR(Seconds(Collective::kReduce, 4, 1, WireAlgorithm::kByOwners), 2 + kBytes * 3 / 2,
              kSums);
  EXPECT_NEAR(Seconds(Collective::kReduce, 4, 1, kRing), 4 + kBytes * 3 / 2, kSums);
  EXPECT_NEAR(Seconds(kAllToAll, 4, 1, kRing), 3 + kBytes * 3 / 4, kSums);
  EXPECT_NEAR(Seconds(kAllToAll, 4, 1, kHalving), 2 + kBytes, kSums);
  EXPECT_NEAR(Seconds(kGather, 5, 1, kHalving), 3 + kBytes * 4, kSums);
  EXPECT_EQ(Seconds(kSend, 4, 1, kRing), -1);
}

TEST(OperationCost, OfSeveralRanksANodeIsThatOfBothLanes) {
  // Messages side by side: two ranks of each node send half of what they have to the other node,
  // and a quarter to each other.
  const auto exchange = OperationCosts(kAllToAll, NetworkOf(2, 2), kBytes).front();
  EXPECT_DOUBLE_EQ(exchange.between_nodes_s, 1 + kBytes);
  EXPECT_DOUBLE_EQ(exchange.sent_bytes, kBytes);
  EXPECT_DOUBLE_EQ(exchange.in_node_s, kBytes * (2 * 2 / 4.0) / 4);
  EXPECT_DOUBLE_EQ(exchange.seconds, exchange.between_nodes_s);
  // A send stays in a node only where all ranks are there.
  EXPECT_DOUBLE_EQ(Seconds(kSend, 2, 2), 1 + kBytes);
  // Stages one behind the other, of one block; of four only a quarter of the quicker one shows.
  OperationNetwork network = NetworkOf(2, 2);
  const auto whole = OperationCosts(Collective::kReduceScatter, network, kBytes).front();
  EXPECT_DOUBLE_EQ(whole.in_node_s, kBytes * 3 / 4);
  EXPECT_DOUBLE_EQ(whole.seconds, whole.in_node_s + whole.between_nodes_s);
  network.block_bytes = kBytes / 4;
  const auto cut = OperationCosts(Collective::kReduceScatter, network, kBytes).front();
  EXPECT_DOUBLE_EQ(cut.seconds, std::max(cut.in_node_s, cut.between_nodes_s) +
                                    std::min(cut.in_node_s, cut.between_nodes_s) / 4);
}

// One source of truth: what is predicted is what the exchange goes by.
TEST(OperationCost, ChoosesAsTheExchangeDoes) {
  const auto pattern_of = [](const OperationCost& cost, Collective kind) {
    using transport::Pattern;
    if (kind == Collective::kReduce) return Pattern::kToRoot;
    const bool direct = cost.algorithm == WireAlgorithm::kDirect;
    if (kind == Collective::kBroadcast) {
      return direct ? Pattern::kFromRoot : Pattern::kFromRootByOwners;
    }
    if (cost.algorithm == WireAlgorithm::kDoubling) return Pattern::kDoubling;
    if (cost.algorithm == WireAlgorithm::kRing) return Pattern::kRing;
    return direct ? Pattern::kExchange : Pattern::kScatter;
  };
  for (const std::uint32_t nodes : {2U, 3U, 4U, 6U, 8U, 64U}) {
    for (const std::uint64_t bytes : {64U, 4096U, 65536U, 262144U, 1048576U, 16777216U}) {
      const transport::CostLine line{.startup_s = 100e-6, .s_per_byte = 8e-9};
      OperationNetwork network = NetworkOf(nodes, 1);
      network.between_nodes = {0, line.startup_s, line.s_per_byte};
      for (const Collective kind :
           {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
        const OperationCost chosen =
            CarriedOut(kind, OperationCosts(kind, network, static_cast<double>(bytes)));
        const transport::Choice choice{.data_count = nodes, .cost = line};
        const transport::CollectiveSpec spec{.kind = kind, .dtype = DType::kUInt8, .count = bytes};
        const transport::Pattern pattern = transport::ChoosePattern(spec, choice);
        EXPECT_DOUBLE_EQ(chosen.seconds,
                         transport::PredictSeconds(pattern, static_cast<double>(bytes), choice))
            << Name(kind) << " of " << bytes << " on " << nodes;
        if (nodes > 2) {
          EXPECT_EQ(pattern_of(chosen, kind), pattern);
        }
      }
    }
  }
}

TEST(OperationCost, OfAStraightLineIsNeverLessByARingThanDirect) {
  for (const std::uint32_t nodes : {2U, 3U, 5U, 8U, 64U}) {
    for (const Collective kind : {Collective::kReduceScatter, Collective::kAllGather, kAllToAll}) {
      EXPECT_EQ(CheapestOf(OperationCosts(kind, NetworkOf(nodes, 1), kBytes)).algorithm,
                WireAlgorithm::kDirect);
    }
  }
  // A root that sums all by itself is cheapest for little only.
  EXPECT_EQ(CheapestOf(OperationCosts(Collective::kReduce, NetworkOf(8, 1), 1e-3)).algorithm,
            WireAlgorithm::kDirect);
  EXPECT_EQ(CheapestOf(OperationCosts(Collective::kReduce, NetworkOf(8, 1), kBytes)).algorithm,
            WireAlgorithm::kByOwners);
}

TEST(OperationCost, RefusesWhatIsNoNetwork) {
  const auto check = [](std::uint32_t nodes, std::uint32_t ranks, double startup_s, double block) {
    OperationNetwork network = NetworkOf(nodes, ranks);
    network.between_nodes.startup_s = startup_s;
    network.block_bytes = block;
    return CheckOperationNetwork(network);
  };
  EXPECT_TRUE(check(2, 1, 0, 1));
  for (const Status& status :
       {check(1, 1, 0, 1), check(0, 4, 0, 1), check(8192, 2, 0, 1), check(2, 1, -1, 1),
        check(2, 1, std::numeric_limits<double>::quiet_NaN(), 1), check(2, 1, 0, 0)}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace headrace::plan
