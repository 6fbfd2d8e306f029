// The lane between GPUs gives the bits of the lane on the host: every type, reduction and number of
// members, wherever they are.
#include <algorithm>
#include <random>

#include "tests/contract/device/staged_transport.h"
#include "tests/contract/members.h"
#include "tests/contract/scattered.h"
#include "tests/unit/transport/nvlink/lane_of_gpus.h"
#include "transport/shm/move.h"

namespace headrace::transport {
namespace {

class NvlinkBits : public LaneOfGpus, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Start(GetParam()));
    staged_ = std::make_unique<StagedTransport>(*gpus_, gpus_->count(), *lane_);
  }
  void TearDown() override {
    staged_.reset();
    LaneOfGpus::TearDown();
  }

  // Runs a transfer of memory on the host, by way of the GPUs.
  Completion RunStaged(const Transfer& transfer) {
    EXPECT_EQ(staged_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
    std::vector<Completion> completions;
    while (completions.empty()) staged_->DoWork(MonotonicNow(), completions);
    return completions[0];
  }

  void ExpectHostBits(Transfer transfer, DType dtype, std::uint64_t count,
                      std::uint32_t members_count, std::uint64_t seed) {
    Members members(dtype, count, members_count);
    members.Fill(seed);
    const Members expected = members.Copy();
    transfer.root = members_count - 1;
    expected.Describe(transfer);
    transfer.output = expected.Member(transfer.root);
    MoveRange(transfer, 0, transfer.count);
    members.Describe(transfer);
    transfer.output = members.Member(transfer.root);
    const Completion completion = RunStaged(transfer);
    ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
    ASSERT_EQ(members.Contents(), expected.Contents())
        << Name(transfer.kind) << " " << Name(dtype) << " " << Name(transfer.reduction) << " of "
        << members_count << " divided by " << transfer.divisor;
  }

 private:
  std::unique_ptr<StagedTransport> staged_;
};

TEST_P(NvlinkBits, AreTheHostsForEveryTypeReductionAndNumberOfMembers) {
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : kReductions) {
      for (const std::uint32_t members_count : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 16U}) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectHostBits({.kind = Collective::kAllReduce, .reduction = reduction}, dtype, 1003,
                           members_count, members_count));
      }
    }
  }
}

TEST_P(NvlinkBits, AreTheHostsForTheMostMembers) {
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : kReductions) {
      ASSERT_NO_FATAL_FAILURE(ExpectHostBits({.kind = Collective::kReduce, .reduction = reduction},
                                             dtype, 333, kMembersMax, 5));
    }
  }
}

TEST_P(NvlinkBits, AreTheHostsForEveryDivisor) {
  for (const DType dtype : kDTypes) {
    for (const std::uint32_t divisor : {1U, 2U, 3U, 1000U, UINT32_MAX}) {
      for (const std::uint32_t members_count : {1U, 2U, 5U}) {
        ASSERT_NO_FATAL_FAILURE(ExpectHostBits(
            {.kind = Collective::kAllReduce, .reduction = Reduction::kAverage, .divisor = divisor},
            dtype, 500, members_count, divisor));
      }
    }
  }
}

// Large enough for every GPU to have a share of every piece, and for several pieces.
TEST_P(NvlinkBits, AreTheHostsAcrossPiecesAndShares) {
  const NvlinkOptions kLarge{.ctas = 3, .piece_size = std::size_t{1} << 20};
  ASSERT_NO_FATAL_FAILURE(OpenLane(kLarge));
  StagedTransport staged(*gpus_, gpus_->count(), *lane_);
  for (const Collective kind : {Collective::kAllReduce, Collective::kReduceScatter,
                                Collective::kAllGather, Collective::kBroadcast}) {
    Members members(DType::kBFloat16, 4 * 300'001, 4);
    members.Fill(9);
    const Members expected = members.Copy();
    Transfer transfer{.kind = kind};
    expected.Describe(transfer);
    MoveRange(transfer, 0, transfer.count);
    members.Describe(transfer);
    ASSERT_EQ(staged.Post(transfer, MonotonicNow()), PostResult::kAccepted);
    std::vector<Completion> completions;
    while (completions.empty()) staged.DoWork(MonotonicNow(), completions);
    ASSERT_EQ(completions[0].code, Code::kOk) << completions[0].cause;
    ASSERT_TRUE(members.Contents() == expected.Contents()) << Name(kind);
  }
}

TEST_P(NvlinkBits, AreTheHostsWhateverTheRuns) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 40; ++round) {
    const DType dtype = kDTypes[random() % 7];
    const auto counts = RunCounts(1 + random() % 200, 1 + random() % 300, random());
    const Scattered place(dtype, counts, random());
    const auto members_count = static_cast<std::uint32_t>(1 + random() % 8);
    Members members(dtype, place.extent(), members_count);
    members.Fill(random());
    const Members expected = members.Copy();
    Transfer transfer{.kind = round % 3 == 0 ? Collective::kBroadcast : Collective::kAllReduce,
                      .reduction = kReductions[random() % 5]};
    expected.Describe(transfer);
    transfer.runs = place.runs();
    transfer.skip = random() % place.count();
    transfer.count = 1 + random() % (place.count() - transfer.skip);
    MoveRange(transfer, 0, transfer.count);
    for (std::uint32_t i = 0; i < members_count; ++i) transfer.members[i] = members.Member(i);
    const Completion completion = RunStaged(transfer);
    ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
    ASSERT_TRUE(members.Contents() == expected.Contents()) << "round " << round;
    ASSERT_TRUE(members.GuardsAreWhole());
  }
}

INSTANTIATE_TEST_SUITE_P(Of, NvlinkBits, ::testing::Values(1, 2, 3, 8),
                         [](const auto& test) { return std::to_string(test.param) + "Gpus"; });

}  // namespace
}  // namespace headrace::transport
