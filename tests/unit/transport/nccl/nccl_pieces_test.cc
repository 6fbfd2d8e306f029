// How transfers become calls, without any NCCL.
#include "transport/nccl/nccl_pieces.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace headrace::transport {
namespace {

// Where memory would be; nothing is read or written.
std::byte* At(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

Transfer OverGpus(Collective kind, std::uint32_t gpus_count, std::uint64_t count) {
  Transfer transfer{
      .kind = kind, .dtype = DType::kFloat32, .count = count, .members_count = gpus_count};
  for (std::uint32_t i = 0; i < gpus_count; ++i) {
    transfer.members[i] = At((i + 1) << 28);
    transfer.devices[i] = static_cast<std::int8_t>(i);
  }
  return transfer;
}

std::vector<NcclCall> CallsOf(const Transfer& transfer, std::uint64_t begin, std::uint64_t end) {
  std::vector<NcclCall> calls;
  AddCalls(transfer, RankMapInNode(transfer), RunWalk(transfer), begin, end, calls);
  return calls;
}

std::vector<Run> ManyRuns(std::size_t count) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < count; ++i) runs.push_back({.offset = i * 64, .count = 5});
  return runs;
}

TEST(NcclPieces, SeatEveryGpuAndLeaveTheHostOut) {
  Transfer transfer = OverGpus(Collective::kBroadcast, 4, 100);
  transfer.devices[1] = kHost;
  transfer.root = 2;
  NcclRankMap rank_map = RankMapInNode(transfer);
  EXPECT_EQ(rank_map.local_ranks_count, 3U);
  EXPECT_EQ(rank_map.ranks_count, 3U);
  EXPECT_EQ(rank_map.members[1], 2U);
  EXPECT_EQ(rank_map.root_rank, 1U);
  transfer.root = 1;
  EXPECT_EQ(RankMapInNode(transfer).root_rank, kNoRank);
  rank_map = RankMapBetweenNodes(transfer, 3);
  EXPECT_EQ(rank_map.local_ranks_count, 1U);
  EXPECT_EQ(rank_map.ranks_count, 4U);
  EXPECT_EQ(rank_map.ranks[0], 3U);
  EXPECT_EQ(rank_map.root_rank, 1U);
}

TEST(NcclPieces, EndAfterSoManyBytesOrStretches) {
  Transfer transfer = OverGpus(Collective::kAllReduce, 2, 1000);
  EXPECT_EQ(PieceEnd(transfer, RunWalk(transfer), 0, 400), 100U);
  EXPECT_EQ(PieceEnd(transfer, RunWalk(transfer), 950, 400), 1000U);
  EXPECT_EQ(PieceEnd(transfer, RunWalk(transfer), 0, 1), 1U);
  const auto runs = ManyRuns(200);
  transfer.runs = runs;
  EXPECT_EQ(PieceEnd(transfer, RunWalk(transfer), 0, 1 << 20), 5 * kPieceStretchesMax);
  EXPECT_EQ(PieceEnd(transfer, RunWalk(transfer), 3, 1 << 20), 5 * kPieceStretchesMax);
  transfer.runs = {};
  transfer.kind = Collective::kAllGather;
  EXPECT_EQ(PieceEnd(transfer, RunWalk(transfer), 0, 400), 1000U);
}

TEST(NcclPieces, OfAReduceToTheHostGiveEveryGpuAShareAndWriteEachElementOnce) {
  for (const std::uint32_t gpus_count : {1U, 2U, 3U, 8U}) {
    Transfer transfer = OverGpus(Collective::kReduce, gpus_count, 1636);
    transfer.output = At(std::uintptr_t{1} << 40);
    std::vector<int> written(1636);
    std::map<std::uint32_t, int> calls_of_root;
    for (const NcclCall& call : CallsOf(transfer, 100, 1636)) {
      ++calls_of_root[call.root];
      if (call.local_rank != call.root) continue;
      const auto first = static_cast<std::uint64_t>(call.target - transfer.output) / sizeof(float);
      EXPECT_EQ(call.source, transfer.members[call.local_rank] + first * sizeof(float));
      for (std::uint64_t i = 0; i < call.count; ++i) ++written[first + i];
    }
    for (std::size_t i = 0; i < written.size(); ++i) EXPECT_EQ(written[i], i < 100 ? 0 : 1) << i;
    EXPECT_EQ(calls_of_root.size(), gpus_count);
    // All ranks take part in each, in the same order.
    for (const auto& [root, count] : calls_of_root) {
      EXPECT_EQ(static_cast<std::uint32_t>(count), gpus_count) << root;
    }
  }
}

// NCCL writes to memory of its rank's own GPU only.
TEST(NcclPieces, OfAReduceElsewhereOnTheRootsGpuAreWrittenByTheRoot) {
  Transfer transfer = OverGpus(Collective::kReduce, 3, 300);
  transfer.root = 1;
  transfer.output = At(std::uintptr_t{1} << 40);
  transfer.output_on_root_gpu = true;
  const auto calls = CallsOf(transfer, 100, 300);
  ASSERT_EQ(calls.size(), 3U);
  for (const NcclCall& call : calls) {
    EXPECT_EQ(call.root, 1U);
    EXPECT_EQ(call.count, 200U);
    EXPECT_EQ(call.source, transfer.members[call.local_rank] + 100 * sizeof(float));
    EXPECT_EQ(call.target == transfer.output + 100 * sizeof(float), call.local_rank == 1);
  }
}

TEST(NcclPieces, StayWithinTheirCallsAlsoWithTheMostStretchesAndMembers) {
  Transfer transfer = OverGpus(Collective::kReduce, kMembersMax, 5 * kPieceStretchesMax);
  transfer.output = At(std::uintptr_t{1} << 40);
  const auto runs = ManyRuns(kPieceStretchesMax);
  transfer.runs = runs;
  const auto calls = CallsOf(transfer, 0, transfer.count);
  EXPECT_GE(calls.size(), kPieceStretchesMax * kMembersMax);
  EXPECT_LE(calls.size(), kCallsMax);
}

TEST(NcclPieces, OfScattersAndGathersLieInTheOrderOfRanks) {
  Transfer transfer = OverGpus(Collective::kReduceScatter, 3, 30);
  auto calls = CallsOf(transfer, 0, 30);
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[2].count, 10U);
  EXPECT_EQ(calls[2].source, transfer.members[2]);
  EXPECT_EQ(calls[2].target, transfer.members[2] + 20 * sizeof(float));
  transfer.outputs[2] = At(std::uintptr_t{1} << 40);
  calls = CallsOf(transfer, 0, 30);
  EXPECT_EQ(calls[1].target, transfer.members[1] + 10 * sizeof(float));
  EXPECT_EQ(calls[2].source, transfer.members[2]);
  EXPECT_EQ(calls[2].target, transfer.outputs[2]);
  transfer.kind = Collective::kAllGather;
  calls = CallsOf(transfer, 0, 30);
  EXPECT_EQ(calls[1].source, transfer.members[1] + 10 * sizeof(float));
  EXPECT_EQ(calls[1].target, transfer.members[1]);
}

}  // namespace
}  // namespace headrace::transport
