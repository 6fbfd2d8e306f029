#include "service/dispatch/blocks/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

namespace headrace::service {
namespace {

JobNodes Nodes(std::vector<std::vector<std::uint32_t>> ranks, std::uint64_t block_bytes) {
  JobNodes nodes;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    nodes.nodes.push_back({.name = std::string(1, static_cast<char>('a' + i)), .ranks = ranks[i]});
  }
  nodes.block_bytes = block_bytes;
  nodes.costs = {{0.0001, 1e-9}};
  return nodes;
}

OperationSpec Shape(Collective kind, std::uint64_t count, std::uint32_t root = 0) {
  OperationSpec spec;
  spec.kind = kind;
  spec.dtype = DType::kFloat32;
  spec.count = count;
  spec.root = root;
  return spec;
}

TEST(Cut, LeavesAnOperationOfOneNodeWhole) {
  const OperationSpec spec = Shape(Collective::kReduceScatter, 1 << 20);
  EXPECT_EQ(BlocksCount(spec, 4, 0), 1U);
  Block block;
  CutBlock(spec, 4, 0, 0, block);
  EXPECT_EQ(block.range.begin, 0U);
  EXPECT_EQ(block.range.count, spec.count);
  EXPECT_EQ(NextStage(spec, nullptr, 4, BlockStage::kInNode), BlockStage::kInNode);
  EXPECT_EQ(NextStage(spec, nullptr, 4, BlockStage::kBetweenNodes), BlockStage::kDone);
}

TEST(Cut, CoversEachElementOnceWithBlocksOfOneRoot) {
  const JobNodes nodes = Nodes({{0, 2}, {1}}, 64);
  for (const Collective kind : {Collective::kAllReduce, Collective::kReduceScatter,
                                Collective::kAllGather, Collective::kBroadcast}) {
    for (const std::uint64_t count : {3ULL, 48ULL, 51ULL, 300ULL}) {
      const OperationSpec spec = Shape(kind, count, 1);
      const bool parted = kind == Collective::kReduceScatter || kind == Collective::kAllGather;
      std::vector<int> covered(count);
      for (std::uint32_t i = 0; i < BlocksCount(spec, 3, nodes.block_bytes); ++i) {
        Block block;
        CutBlock(spec, 3, nodes.block_bytes, i, block);
        EXPECT_LE(block.range.count * 4, 64U);
        EXPECT_GT(block.range.count, 0U);
        for (std::uint64_t e = 0; e < block.range.count; ++e) {
          ++covered[block.range.begin + e];
          EXPECT_EQ(block.root, parted ? (block.range.begin + e) / (count / 3) : 1U);
        }
      }
      EXPECT_EQ(covered, std::vector<int>(count, 1)) << Name(kind) << " of " << count;
    }
  }
}

TEST(Cut, CutsPartsIntoBlocksOfWhichSeveralAreUnderWay) {
  constexpr std::uint64_t kMiB = 1 << 20;
  JobNodes nodes = Nodes({{0}, {1}}, 4 * kMiB);
  const auto bytes_of = [&nodes](Collective kind, std::uint64_t count, bool on_gpu = false) {
    OperationSpec spec = Shape(kind, count);
    if (on_gpu) spec.device = 0;
    return BlockBytesBetweenNodes(spec, nodes);
  };
  EXPECT_EQ(bytes_of(Collective::kReduceScatter, 8 * kMiB), kMiB);
  EXPECT_EQ(bytes_of(Collective::kAllGather, 8 * kMiB), kMiB);
  EXPECT_EQ(bytes_of(Collective::kAllReduce, 8 * kMiB), 4 * kMiB);
  EXPECT_EQ(bytes_of(Collective::kBroadcast, 8 * kMiB), 4 * kMiB);
  // What had room for its blocks still has it.
  const OperationSpec large = Shape(Collective::kAllGather, std::uint64_t{16} << 30);
  EXPECT_EQ(BlockBytesBetweenNodes(large, nodes), 2 * kMiB);
  EXPECT_LE(BlocksCount(large, 64, 2 * kMiB), kBlocksPerOperationMax);
  // NCCL moves each block by a call.
  nodes.nccl_lanes = 1;
  EXPECT_EQ(bytes_of(Collective::kAllGather, 8 * kMiB, true), 4 * kMiB);
  nodes.block_bytes = 64;
  EXPECT_EQ(bytes_of(Collective::kAllGather, 8 * kMiB), 64U);
}

TEST(Cut, GivesABarrierOneBlockThatMeetsTheOtherNodes) {
  const JobNodes nodes = Nodes({{0, 1}, {2}}, 64);
  const OperationSpec spec = Shape(Collective::kBarrier, 0);
  EXPECT_EQ(BlocksCount(spec, 3, nodes.block_bytes), 1U);
  EXPECT_EQ(NextStage(spec, &nodes, 2, BlockStage::kInNode), BlockStage::kBetweenNodes);
  EXPECT_EQ(NextStage(spec, &nodes, 2, BlockStage::kToRanks), BlockStage::kDone);
}

TEST(Cut, LeavesOutTheStagesThatANodeOfOneRankDoesNotNeed) {
  const JobNodes nodes = Nodes({{0, 1}, {2}}, 64);
  const OperationSpec spec = Shape(Collective::kAllReduce, 100);
  EXPECT_EQ(NextStage(spec, &nodes, 2, BlockStage::kInNode), BlockStage::kInNode);
  EXPECT_EQ(NextStage(spec, &nodes, 2, BlockStage::kToRanks), BlockStage::kToRanks);
  EXPECT_EQ(NextStage(spec, &nodes, 1, BlockStage::kInNode), BlockStage::kBetweenNodes);
  EXPECT_EQ(NextStage(spec, &nodes, 1, BlockStage::kToRanks), BlockStage::kDone);
  EXPECT_EQ(NextStage(Shape(Collective::kReduceScatter, 99), &nodes, 2, BlockStage::kToRanks),
            BlockStage::kDone);
}

TEST(Cut, TakesBlocksOfGpusThroughTheHostsMemoryOnTheirWayToOtherNodes) {
  const JobNodes nodes = Nodes({{0, 1}, {2}}, 64);
  const auto stages = [&nodes](Collective kind, std::size_t ranks_count, bool root_is_here) {
    OperationSpec spec = Shape(kind, 96);
    spec.device = 1;
    std::string names;
    for (BlockStage stage = BlockStage::kInNode; stage != BlockStage::kDone;) {
      const BlockStage next = NextStage(spec, &nodes, ranks_count, stage, root_is_here);
      if (next == BlockStage::kDone) break;
      names += "ibt"[static_cast<int>(next)];  // in the node, between nodes, to ranks
      stage = static_cast<BlockStage>(static_cast<int>(next) + 1);
    }
    return names;
  };
  for (const std::size_t ranks_count : {1U, 2U}) {
    EXPECT_EQ(stages(Collective::kAllReduce, ranks_count, false), "ibt");
    EXPECT_EQ(stages(Collective::kReduceScatter, ranks_count, true), "ibt");
    EXPECT_EQ(stages(Collective::kReduceScatter, ranks_count, false), "ib");
    EXPECT_EQ(stages(Collective::kAllGather, ranks_count, false), "bt");
    EXPECT_EQ(stages(Collective::kBroadcast, ranks_count, false), "bt");
  }
  // Who has it all along needs nothing back.
  EXPECT_EQ(stages(Collective::kBroadcast, 1, true), "ib");
  EXPECT_EQ(stages(Collective::kBroadcast, 2, true), "ibt");
}

TEST(Cut, SharesABlockOutSoThatAllRailsEndTogether) {
  const std::vector<transport::CostLine> costs = {{0.0001, 8e-9}, {0.0002, 20e-9}};
  std::array<Range, kRailsMax> shares;
  ASSERT_EQ(ShareOut({100, 1 << 20}, 4, costs, shares), 2U);
  EXPECT_EQ(shares[0].begin, 100U);
  EXPECT_EQ(shares[1].begin, 100 + shares[0].count);
  EXPECT_EQ(shares[0].count + shares[1].count, 1U << 20);
  const double first = costs[0].Seconds(static_cast<double>(shares[0].count) * 4);
  const double second = costs[1].Seconds(static_cast<double>(shares[1].count) * 4);
  EXPECT_NEAR(first, second, 1e-6);
}

TEST(Cut, SendsASmallBlockOverTheFasterRailAlone) {
  std::array<Range, kRailsMax> shares;
  ShareOut({0, 16}, 4, {{0.0001, 8e-9}, {0.0005, 8e-9}}, shares);
  EXPECT_EQ(shares[0].count, 16U);
  EXPECT_EQ(shares[1].count, 0U);
}

TEST(Cut, FindsTheNodeOfARank) {
  const JobNodes nodes = Nodes({{0, 3}, {1, 2, 4}}, 64);
  EXPECT_EQ(NodeOf(nodes, 3), 0U);
  EXPECT_EQ(NodeOf(nodes, 4), 1U);
}

TEST(GpuShares, CoverTheRangeOnceAndAreEqualButForSmallOnes) {
  for (const std::uint64_t count : {1U, 100U, 16'384U, 40'000U, 1'000'001U, 33'554'432U}) {
    for (std::uint32_t lanes = 1; lanes <= kRailsMax; ++lanes) {
      for (std::uint64_t first = 0; first < lanes; ++first) {
        std::array<Range, kRailsMax> shares;
        ASSERT_EQ(ShareEvenly({7, count}, 4, lanes, first, shares), lanes);
        std::uint64_t next = 7;
        for (std::uint32_t i = 0; i < lanes; ++i) {
          const Range& share = shares[(first + i) % lanes];
          EXPECT_EQ(share.begin, next);
          next += share.count;
          // Neither much more than its part, nor for little.
          EXPECT_LE(share.count * 4, std::max(kGpuShareBytesMin, 4 * (count / lanes + 65)));
          if (i > 0 && share.count != 0) {
            EXPECT_GE(shares[first].count * 4, kGpuShareBytesMin);
          }
        }
        EXPECT_EQ(next, 7 + count);
      }
    }
  }
}

TEST(GpuShares, AreForGpusMemoryOfJobsWhoseNodesHaveSuchLanes) {
  OperationSpec spec = Shape(Collective::kAllReduce, 100);
  JobNodes nodes = Nodes({{0}, {1}}, 4096);
  EXPECT_FALSE(CrossesFromGpus(spec, nodes));
  spec.device = 1;
  EXPECT_FALSE(CrossesFromGpus(spec, nodes)) << "gpu_network = staged";
  nodes.nccl_lanes = 1;
  EXPECT_TRUE(CrossesFromGpus(spec, nodes));
  nodes.servers_count = 1;
  EXPECT_FALSE(CrossesFromGpus(spec, nodes)) << "servers have no GPUs";
  nodes.servers_count = 0;
  spec.count = 0;
  EXPECT_FALSE(CrossesFromGpus(spec, nodes)) << "a meeting";
}

}  // namespace
}  // namespace headrace::service
