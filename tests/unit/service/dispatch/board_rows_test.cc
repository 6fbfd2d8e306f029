// What the board shows: why each block waits, who is attached, and that rows come back.
#include <gtest/gtest.h>

#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

using ipc::StageState;
using ipc::WaitReason;

void ExpectWaits(const HandDrivenNode& node, std::uint64_t block, StageState state,
                 WaitReason reason, std::uint64_t argument) {
  const std::optional<ipc::QueueRow> row = node.QueueRow(JobId{1}, block);
  ASSERT_TRUE(row.has_value()) << "block " << block;
  EXPECT_EQ(row->state, static_cast<std::uint32_t>(state)) << "block " << block;
  EXPECT_EQ(row->reason, static_cast<std::uint32_t>(reason)) << "block " << block;
  EXPECT_EQ(row->wait_argument, argument) << "block " << block;
}

TEST(Board, ShowsWhichRankABlockWaitsFor) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor1s, 0);
  node.AddTensor(a, TensorId{0},
                 {.name = "fc.bias", .segment = {}, .count = 16, .dtype = DType::kFloat32});
  a.Post(OnTensor(Collective::kAllReduce, DType::kFloat32, 16, TensorId{0}));
  node.Settle();
  ExpectWaits(node, 1, StageState::kGathering, WaitReason::kRankNotAttached, 1);
  const ipc::QueueRow row = *node.QueueRow(JobId{1}, 1);
  EXPECT_EQ(ipc::GetText(row.tensor), "fc.bias");
  EXPECT_EQ(row.bytes, 64U);
  EXPECT_EQ(row.ranks_missing, 2U);
  EXPECT_EQ(row.posted_ns, node.now);
  EXPECT_EQ(row.kind, static_cast<std::uint8_t>(Collective::kAllReduce));
  node.Attach(kPairFor1s, 1);
  node.Settle();
  ExpectWaits(node, 1, StageState::kGathering, WaitReason::kRankNotReady, 1);
}

TEST(Board, ShowsWhatABlockInTheQueueWaitsFor) {
  HandDrivenNode node(Loopback({.startup_ns = 10 * kMillisecond}), 64);
  ClientEnd& a = node.Attach({.world_size = 1, .timeout_ms = 1000}, 0);
  a.PostApart(kSum);
  node.Settle();
  ExpectWaits(node, 1, StageState::kMoving, WaitReason::kNone, 0);
  a.PostApart(kSum);
  node.Settle();
  ExpectWaits(node, 2, StageState::kWaiting, WaitReason::kNoCredit, 0);
  EXPECT_EQ(node.LaneRow().queued_stages, 1U);
  a.PostApart(kSum);
  a.PostApart(kSum);
  node.Settle();
  ExpectWaits(node, 3, StageState::kWaiting, WaitReason::kBehindBlock, 2);
  ExpectWaits(node, 4, StageState::kWaiting, WaitReason::kBehindBlock, 3);
  node.Advance(10 * kMillisecond);
  ExpectWaits(node, 2, StageState::kMoving, WaitReason::kNone, 0);
  ExpectWaits(node, 3, StageState::kWaiting, WaitReason::kNoCredit, 0);
  ExpectWaits(node, 4, StageState::kWaiting, WaitReason::kBehindBlock, 3);
}

TEST(Board, ShowsNoBlockBehindOneThatHasEnded) {
  HandDrivenNode node(Loopback({.startup_ns = 100 * kMillisecond}), 64);
  ClientEnd& a = node.Attach({.world_size = 1, .timeout_ms = 1000}, 0);
  ipc::Record hurried = kSum;
  hurried.timeout_ms = 10;
  a.PostApart(kSum);
  a.PostApart(kSum);
  a.PostApart(hurried);
  a.PostApart(kSum);
  node.Settle();
  ExpectWaits(node, 4, StageState::kWaiting, WaitReason::kBehindBlock, 3);
  node.Advance(10 * kMillisecond);
  ExpectFailed(a, 3, Code::kTimeout, {});
  ExpectWaits(node, 4, StageState::kWaiting, WaitReason::kBehindBlock, 2);
}

TEST(Board, ShowsTheHeadThatFollowsOneThatHasEnded) {
  HandDrivenNode node(Loopback({.startup_ns = 100 * kMillisecond}), 64);
  ClientEnd& a = node.Attach({.world_size = 1, .timeout_ms = 1000}, 0);
  ipc::Record hurried = kSum;
  hurried.timeout_ms = 10;
  a.PostApart(kSum);
  a.PostApart(hurried);
  a.PostApart(kSum);
  node.Settle();
  node.Advance(10 * kMillisecond);
  ExpectWaits(node, 3, StageState::kWaiting, WaitReason::kNoCredit, 0);
  EXPECT_EQ(node.LaneRow().queued_stages, 1U);
}

TEST(Board, ShowsJobsAndRanksWhileTheyAreThere) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor1s, 0, 8192);
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kGathering));
  EXPECT_EQ(node.JobRow(JobId{1})->ranks_attached, 1U);
  EXPECT_EQ(ipc::GetText(node.JobRow(JobId{1})->name), "job");
  ClientEnd& b = node.Attach(kPairFor1s, 1);
  node.AddTensor(a, TensorId{0}, {.name = "w", .segment = {}, .count = 1});
  a.PostApart(kSum);
  b.PostApart(kSum);
  a.PostApart(kSum);
  node.Settle();
  const ipc::JobRow job = *node.JobRow(JobId{1});
  EXPECT_EQ(job.state, static_cast<std::uint32_t>(ipc::JobState::kRunning));
  EXPECT_EQ(job.operations_ended, 1U);
  EXPECT_EQ(job.operations_open, 1U);
  EXPECT_EQ(job.bytes_moved, 64U);
  const ipc::RankRow rank = *node.RankRow(JobId{1}, 0);
  EXPECT_EQ(rank.pid, 1000);
  EXPECT_EQ(rank.tensors, 1U);
  EXPECT_EQ(rank.segment_bytes, 8192U);
  EXPECT_EQ(rank.operations_posted, 2U);
  EXPECT_EQ(rank.operations_ended, 1U);

  node.Close(b, false, "exited or was killed");
  node.Settle();
  EXPECT_FALSE(node.RankRow(JobId{1}, 1).has_value());
  EXPECT_EQ(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kFailed));
  EXPECT_TEXT(ipc::GetText(node.JobRow(JobId{1})->failure), "rank 1", "pid 1001", "operation 1");
  EXPECT_EQ(node.JobRow(JobId{1})->operations_failed, 1U);
  node.Close(a, true, "left the job");
  node.Settle();
  EXPECT_EQ(node.RowsInUse(), 0U);
}

TEST(Board, ShowsTheLane) {
  HandDrivenNode node(Loopback({.startup_ns = 3 * kMillisecond}), 1 << 20);
  EXPECT_EQ(node.LaneRow().in_use, 1U);
  EXPECT_EQ(node.LaneRow().credit_bytes, 1U << 20);
  EXPECT_EQ(ipc::GetText(node.LaneRow().name), "lane0");
  EXPECT_EQ(ipc::GetText(node.LaneRow().transport), "loopback");
  ClientEnd& a = node.Attach({.world_size = 1}, 0);
  a.PostApart(kSum);
  node.Settle();
  EXPECT_EQ(node.LaneRow().in_flight_stages, 1U);
  node.Advance(3 * kMillisecond);
  const ipc::LaneRow row = node.LaneRow();
  EXPECT_EQ(row.in_flight_stages, 0U);
  EXPECT_EQ(row.stages_ended, 1U);
  EXPECT_EQ(row.bytes_moved, 64U);
  EXPECT_EQ(row.last_bytes, 64U);
  EXPECT_EQ(row.last_ns, 3 * kMillisecond);
  EXPECT_EQ(row.busy_ns, 3 * kMillisecond);
}

// A lane between nodes of which nobody knows when it moves something, as NCCL's.
class Unmeasured final : public transport::NetworkTransport {
 public:
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  transport::PostResult Post(const transport::Transfer&, TimeNs) override {
    return transport::PostResult::kBusy;
  }
  void Cancel(std::uint64_t) override {}
  bool DoWork(TimeNs, std::vector<transport::Completion>&) override { return false; }
  const std::string& address() const override { return address_; }
  std::string WireNames() const override { return "nccl"; }
  Status OpenGroup(const transport::GroupOptions&) override { return {}; }
  void SetCost(std::uint32_t, const transport::CostLine&) override {}
  void SetShare(std::uint32_t, const transport::Share&) override {}
  void CloseGroup(std::uint32_t, const std::string&) override {}
  void SendNotice(std::uint32_t, std::uint32_t, std::vector<std::byte>) override {}
  void DrainNotices(std::vector<transport::Notice>&) override {}
  transport::NetworkCounters counters() const override { return counters_; }

 private:
  transport::Capabilities capabilities_{.name = "nccl0"};
  std::string address_;
  transport::NetworkCounters counters_;
};

TEST(Board, KnowsNoBusyTimeOfALaneBetweenNodesThatCannotTell) {
  Unmeasured network;
  const HandDrivenNode node(Loopback({}), 1 << 20, {&network});
  EXPECT_EQ(node.LaneRow(0).busy_ns, 0);
  EXPECT_EQ(node.LaneRow(1).busy_ns, ipc::kTimeUnknown);
}

TEST(Board, CountsSleepsAndDoorbells) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 2}, 0);
  node.Settle();
  a.Post(Barrier());
  node.TurnDispatch();  // counters are published with the next work
  const ipc::CountersRow before = node.Counters();
  // Sleeps, and the client wakes it.
  ASSERT_TRUE(node.dispatch().PrepareToSleep());
  a.Post(Barrier());
  node.dispatch().Awake();
  node.TurnDispatch();
  EXPECT_EQ(node.Counters().sleeps, before.sleeps + 1);
  EXPECT_EQ(node.Counters().doorbells, before.doorbells + 1);
  // A record that comes before it sleeps wakes nobody.
  a.Post(Barrier());
  ASSERT_FALSE(node.dispatch().PrepareToSleep());
  node.dispatch().Awake();
  node.TurnDispatch();
  EXPECT_EQ(node.Counters().sleeps, before.sleeps + 1);
  EXPECT_EQ(node.Counters().doorbells, before.doorbells + 1);
}

TEST(Board, CountsTheBlocksItHasNoRowFor) {
  HandDrivenNode node;
  constexpr std::uint64_t kTooMany = 10;
  ClientEnd& a = node.Attach({.id = {1}, .world_size = 2}, 0);
  ClientEnd& b = node.Attach({.id = {2}, .world_size = 2}, 0);
  for (std::uint64_t i = 0; i < ipc::kQueueRowsMax; ++i) a.Post(Barrier());
  for (std::uint64_t i = 0; i < kTooMany; ++i) b.Post(Barrier());
  node.Settle();
  EXPECT_EQ(node.Counters().queue_rows_left_out, kTooMany);
  node.Close(a, false, "exited or was killed");
  node.Close(b, false, "exited or was killed");
  node.Settle();
  EXPECT_EQ(node.RowsInUse(), 0U);
}

TEST(Board, GoesOnWhenItsTableOfJobsIsFull) {
  HandDrivenNode node;
  std::vector<ClientEnd*> ranks;
  for (std::uint32_t i = 0; i < ipc::kJobRowsMax + 3; ++i) {
    ranks.push_back(&node.Attach({.id = {i + 1}, .world_size = 1}, 0, 0));
    ranks.back()->Post(Barrier());
  }
  node.Settle();
  for (ClientEnd* rank : ranks) {
    ExpectOk(*rank, 1);
    node.Close(*rank, true, "left the job");
  }
  node.Settle();
  EXPECT_EQ(node.RowsInUse(), 0U);
}

}  // namespace
}  // namespace headrace::support
