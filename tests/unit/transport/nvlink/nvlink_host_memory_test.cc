// Memory of the host that is pinned for GPUs: what other nodes' sums come and go by.
#include <cstring>
#include <numeric>

#include "tests/unit/transport/nvlink/lane_of_gpus.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kCount = 50'000;  // several pieces, and a share for each GPU

class NvlinkHostMemory : public LaneOfGpus {
 protected:
  void SetUp() override { Start(3, {.ctas = 2, .piece_size = std::size_t{128} << 10}); }

  static std::vector<std::int32_t> Counting(std::int32_t from, std::size_t count = kCount) {
    std::vector<std::int32_t> elements(count);
    std::iota(elements.begin(), elements.end(), from);
    return elements;
  }
  static Transfer Of(Collective kind, const std::vector<std::byte*>& members,
                     const std::vector<int>& devices) {
    Transfer transfer{.token = 1, .kind = kind, .dtype = DType::kInt32, .count = kCount};
    transfer.members_count = static_cast<std::uint32_t>(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      transfer.members[i] = members[i];
      transfer.devices[i] = static_cast<std::int8_t>(devices[i]);
    }
    return transfer;
  }
};

TEST_F(NvlinkHostMemory, TakesTheSumOfAllGpus) {
  std::vector<std::byte*> members;
  for (int i = 0; i < 4; ++i)
    members.push_back(OnGpu(static_cast<std::size_t>(i) % 3, Counting(i)));
  for (const std::size_t shift : {0U, 4U, 12U}) {
    Transfer transfer = Of(Collective::kReduce, members, {0, 1, 2, 0});
    transfer.output = OnHost(4 * kCount, shift);
    const Completion completion = Finish(transfer);
    ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
    const auto sums = Read<std::int32_t>(transfer.output, kCount);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(kCount); ++i) {
      ASSERT_EQ(sums[static_cast<std::size_t>(i)], 4 * i + 6);
    }
    EXPECT_EQ(Read<std::int32_t>(members[1], kCount), Counting(1)) << "members keep theirs";
  }
}

TEST_F(NvlinkHostMemory, TakesTheMemoryOfOneGpuAsItIs) {
  Transfer transfer = Of(Collective::kReduce, {OnGpu(1, Counting(7))}, {1});
  transfer.output = OnHost(4 * kCount);
  ASSERT_EQ(Finish(transfer).code, Code::kOk);
  EXPECT_EQ(Read<std::int32_t>(transfer.output, kCount), Counting(7));
}

TEST_F(NvlinkHostMemory, IsBroughtToEveryGpu) {
  std::byte* const host = OnHost(4 * kCount);
  const auto elements = Counting(3);
  std::memcpy(host, elements.data(), 4 * kCount);
  const std::vector<std::int32_t> zeros(kCount);
  const std::vector<std::byte*> members = {host, OnGpu(0, zeros), OnGpu(1, zeros, 4),
                                           OnGpu(2, zeros), OnGpu(1, zeros)};
  ASSERT_EQ(Finish(Of(Collective::kBroadcast, members, {kHost, 0, 1, 2, 1})).code, Code::kOk);
  for (std::byte* member : members) EXPECT_EQ(Read<std::int32_t>(member, kCount), elements);
}

TEST_F(NvlinkHostMemory, TakesACopyFromAGpu) {
  const std::vector<std::byte*> members = {OnGpu(2, Counting(5)), OnHost(4 * kCount)};
  ASSERT_EQ(Finish(Of(Collective::kBroadcast, members, {2, kHost})).code, Code::kOk);
  EXPECT_EQ(Read<std::int32_t>(members[1], kCount), Counting(5));
}

// GPUs' memory lies in runs, the host's in one piece, by kernels (tiny runs) and by engines.
TEST_F(NvlinkHostMemory, IsOnePieceAlsoWhereGpusHaveRuns) {
  for (const std::uint64_t run_count : {3U, 20'000U}) {
    const transport::Run runs[] = {{.offset = 4 * (kCount - run_count), .count = run_count},
                                   {.offset = 8, .count = run_count}};
    const std::uint64_t skip = run_count / 2;
    Transfer transfer =
        Of(Collective::kReduce, {OnGpu(0, Counting(0)), OnGpu(1, Counting(1))}, {0, 1});
    transfer.runs = runs;
    transfer.skip = skip;
    transfer.count = 2 * run_count - skip;
    transfer.output = OnHost(4 * kCount, 4);
    ASSERT_EQ(Finish(transfer).code, Code::kOk);
    const auto sums = Read<std::int32_t>(transfer.output, transfer.count + 1);
    for (std::uint64_t k = 0; k < transfer.count; ++k) {
      const std::uint64_t at =
          skip + k < run_count ? kCount - run_count + skip + k : 2 + skip + k - run_count;
      ASSERT_EQ(sums[k], static_cast<std::int32_t>(2 * at + 1)) << k;
    }
    EXPECT_EQ(sums[transfer.count], 0) << "nothing beyond";

    // And back, into memory of other contents.
    const std::vector<std::int32_t> zeros(kCount);
    Transfer back = Of(Collective::kBroadcast, {transfer.output, OnGpu(2, zeros), OnGpu(0, zeros)},
                       {kHost, 2, 0});
    back.runs = runs;
    back.skip = skip;
    back.count = transfer.count;
    ASSERT_EQ(Finish(back).code, Code::kOk);
    for (std::size_t member = 1; member < 3; ++member) {
      const auto got = Read<std::int32_t>(back.members[member], kCount);
      std::uint64_t written = 0;
      for (std::uint64_t at = 0; at < kCount; ++at) {
        if (got[at] == 0) continue;
        ASSERT_EQ(got[at], static_cast<std::int32_t>(2 * at + 1));
        ++written;
      }
      EXPECT_EQ(written, back.count);
    }
  }
}

// Which is how one rank's memory goes to other nodes.
TEST_F(NvlinkHostMemory, GathersTheRunsOfOneGpu) {
  const transport::Run runs[] = {{.offset = 400, .count = 10}, {.offset = 0, .count = 30'000}};
  Transfer transfer = Of(Collective::kReduce, {OnGpu(1, Counting(0))}, {1});
  transfer.runs = runs;
  transfer.skip = 4;
  transfer.count = 20'000;
  transfer.output = OnHost(4 * kCount);
  ASSERT_EQ(Finish(transfer).code, Code::kOk);
  const auto gathered = Read<std::int32_t>(transfer.output, transfer.count + 1);
  for (std::int32_t k = 0; k < 20'000; ++k) {
    ASSERT_EQ(gathered[static_cast<std::size_t>(k)], k < 6 ? 104 + k : k - 6);
  }
  EXPECT_EQ(gathered.back(), 0) << "nothing beyond";
}

TEST_F(NvlinkHostMemory, MayBeAMemberOfASum) {
  std::byte* const host = OnHost(4 * kCount);
  const auto elements = Counting(100);
  std::memcpy(host, elements.data(), 4 * kCount);
  const std::vector<std::byte*> members = {OnGpu(0, Counting(0)), host, OnGpu(1, Counting(1))};
  ASSERT_EQ(Finish(Of(Collective::kAllReduce, members, {0, kHost, 1})).code, Code::kOk);
  for (std::byte* member : members) {
    const auto sums = Read<std::int32_t>(member, kCount);
    EXPECT_EQ(sums.front(), 101);
    EXPECT_EQ(sums.back(), static_cast<std::int32_t>(3 * (kCount - 1) + 101));
  }
}

}  // namespace
}  // namespace headrace::transport
