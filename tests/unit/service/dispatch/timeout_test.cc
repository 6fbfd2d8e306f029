// Operations that outlive their time.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "service/dispatch/intake/record_checks.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

TEST(Dispatch, TimesOutWithTheAttachedRankThatIsMissing) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  ClientEnd& b = node.Attach(kPairFor100Ms, 1);
  a.Post(kSum);
  node.Settle();
  EXPECT_EQ(node.dispatch().NextDeadline(), node.now + 100 * kMillisecond);
  node.Advance(100 * kMillisecond - 1);
  ExpectOpen(a, 1);
  node.Advance(1);
  ExpectFailed(a, 1, Code::kTimeout, {"operation 1", "float32", "100 ms", "rank 1", "pid 1001"});
  EXPECT_EQ(a.Read(1).text.find("attached"), std::string::npos);
  EXPECT_EQ(node.dispatch().NextDeadline(), kNever);
  b.Post(kSum);
  node.Settle();
  EXPECT_EQ(b.Read(1).text, a.Read(1).text) << "latecomers learn the same";
  a.Post(kSum);
  b.Post(kSum);
  node.Settle();
  ExpectOk(a, 2);
  ExpectOk(b, 2);
}

// A job of several nodes ends with what timed out first, on all of them.
TEST(Dispatch, NamesAnOperationOnceThatEndedItsJob) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  a.Post(kSum);
  a.Post(Barrier());
  node.Settle();
  const std::string cause = "operation 1 [all_reduce of 16 float32 (sum)] timed out after 100 ms";
  node.Send(service::JobFailed{JobId{1}, Code::kTimeout, cause});
  node.Settle();
  EXPECT_EQ(a.Read(1).text, cause);
  EXPECT_TEXT(a.Read(2).text, cause, "operation 2 [barrier]");
}

TEST(Dispatch, TimesOutWithWhoWaitsForWhomRoundACircle) {
  HandDrivenNode node;
  std::array<ClientEnd*, 3> ranks{};
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    ranks[rank] = &node.Attach({.name = "ring", .world_size = 3}, rank);
  }
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    ipc::Record receive = ReceiveFrom((rank + 1) % 3, 4, 7);
    receive.timeout_ms = rank == 0 ? 50 : 1000;
    ranks[rank]->Post(receive);
  }
  node.Settle();
  node.Advance(50 * kMillisecond);
  ExpectFailed(*ranks[0], 1, Code::kTimeout, {"rank 1 (pid 1001)", "rank 2 (pid 1002)", "circle"});
  ExpectOpen(*ranks[1], 1);
}

TEST(Dispatch, TimesOutWithWhatAProcessWaitsForInAnotherJob) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  node.Attach(kPairFor100Ms, 1);
  const JobSpec group{.id = JobId{2}, .name = "group", .world_size = 2};
  node.Attach(group, 0);
  // The same process as rank 1 of the other job.
  ClientEnd& b = node.Attach(group, 1);
  b.Post(kSum);
  a.Post(kSum);
  node.Settle();
  node.Advance(100 * kMillisecond);
  ExpectFailed(a, 1, Code::kTimeout, {"rank 1", "job group", "rank 0"});
}

TEST(Dispatch, FollowsAFewChainsWhereManyOperationsTimeOutTogether) {
  HandDrivenNode node;
  std::array<ClientEnd*, 2> ranks{};
  for (const std::uint32_t rank : {0U, 1U}) {
    ranks[rank] = &node.Attach({.name = "many", .world_size = 2}, rank);
  }
  ranks[1]->Post(ReceiveFrom(0, 4, 1000));
  std::size_t chains = 0;
  for (std::uint64_t i = 0; i < 10; ++i) {
    ipc::Record receive = ReceiveFrom(1, 4, i);
    receive.timeout_ms = 50;
    receive.offset = i * 64;
    ranks[0]->Post(receive);
  }
  node.Settle();
  node.Advance(50 * kMillisecond);
  for (std::uint64_t i = 1; i <= 10; ++i) {
    ExpectFailed(*ranks[0], i, Code::kTimeout, {"rank 1"});
    if (ranks[0]->Read(i).text.find("tag 1000") != std::string::npos) ++chains;
  }
  EXPECT_GE(chains, 1U);
  EXPECT_LT(chains, 10U);
}

TEST(Dispatch, TimesOutWithTheRankThatNeverAttached) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  a.Post(kSum);
  node.Settle();
  node.Advance(100 * kMillisecond);
  ExpectFailed(a, 1, Code::kTimeout, {"rank 1"});
}

TEST(Dispatch, TakesTheTimeoutOfTheRecordBeforeThatOfTheJob) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  ipc::Record patient = kSum;
  patient.timeout_ms = 5000;
  a.Post(patient);
  node.Settle();
  node.Advance(4 * kSecond);
  ExpectOpen(a, 1);
  node.Advance(kSecond);
  ExpectFailed(a, 1, Code::kTimeout, {"5000 ms"});
}

TEST(Dispatch, TakesTheShortestTimeOfAllRanks) {
  HandDrivenNode node;
  const JobSpec trio{.world_size = 3, .timeout_ms = 60'000};
  ClientEnd& a = node.Attach(trio, 0);
  ClientEnd& b = node.Attach(trio, 1);
  node.Attach(trio, 2);
  a.Post(kSum);
  ipc::Record hurried = kSum;
  hurried.timeout_ms = 10;
  b.Post(hurried);
  node.Settle();
  node.Advance(10 * kMillisecond);
  ExpectFailed(a, 1, Code::kTimeout, {"rank 2", "pid 1002"});
  ExpectFailed(b, 1, Code::kTimeout, {"rank 2"});
}

TEST(Dispatch, ExpiresEachOperationAtItsOwnTime) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  a.Post(kSum);
  node.Settle();
  node.Advance(60 * kMillisecond);
  a.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 16, 64));
  node.Settle();
  node.Advance(40 * kMillisecond);
  ExpectFailed(a, 1, Code::kTimeout, {});
  ExpectOpen(a, 2);
  EXPECT_EQ(node.dispatch().NextDeadline(), node.now + 60 * kMillisecond);
  node.Advance(60 * kMillisecond);
  ExpectFailed(a, 2, Code::kTimeout, {});
}

TEST(Dispatch, CancelsAStageThatOutlivesItsTimeAndTellsTheRanksAfterwards) {
  HandDrivenNode node(Loopback({.piece_size = 8, .startup_ns = 0, .ns_per_byte = 1e9}));
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  ClientEnd& b = node.Attach(kPairFor100Ms, 1);
  a.Post(kSum);
  b.Post(kSum);
  node.Settle();
  ASSERT_EQ(node.transport().open().size(), 1U);
  node.now += 100 * kMillisecond;
  node.TurnDispatch();
  ExpectOpen(a, 1);  // the lane has not let go of the memory
  node.TurnLane();
  EXPECT_EQ(node.transport().cancelled.size(), 1U);
  ExpectOpen(a, 1);
  node.TurnDispatch();
  for (const ClientEnd* rank : {&a, &b}) {
    ExpectFailed(*rank, 1, Code::kTimeout, {"100", "lane lane0"});
  }
  EXPECT_EQ(node.LaneRow().in_flight_bytes, 0U);
}

TEST(Dispatch, TakesAWaitingStageOutOfTheQueueWhenItsTimeIsOver) {
  HandDrivenNode node(Loopback({.startup_ns = 200 * kMillisecond}), 64);
  ClientEnd& a = node.Attach({.world_size = 1, .timeout_ms = 1000}, 0);
  a.Post(kSum);
  ipc::Record hurried = kSum;
  hurried.timeout_ms = 50;
  hurried.offset = 64;
  a.Post(hurried);
  a.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 16, 128));
  node.Settle();
  EXPECT_EQ(node.LaneRow().queued_stages, 2U);
  node.Advance(50 * kMillisecond);
  ExpectFailed(a, 2, Code::kTimeout, {"operation 2"});
  EXPECT_EQ(node.LaneRow().queued_stages, 1U);
  node.Advance(150 * kMillisecond);
  node.Advance(200 * kMillisecond);
  ExpectOk(a, 1);
  ExpectOk(a, 3);
}

// Or anybody could keep the service looking for it every few microseconds for a day.
TEST(Dispatch, RefusesToAwaitAWordThatNoGpuWrites) {
  HandDrivenNode node;
  const JobSpec day{.world_size = 1, .timeout_ms = service::kTimeoutMsMax};
  ClientEnd& a = node.Attach(day, 0);
  const auto layout = PackedLayout({16});
  HandIn(node, a, layout);
  node.Settle();
  ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, 16, 4096);
  ipc::Record barrier = Barrier();
  ipc::Record nothing = OnSegment(Collective::kAllReduce, DType::kFloat32, 0);
  ipc::GradientRecord gradient = GradientOf(*layout, 0);
  record.flags = barrier.flags = nothing.flags = ipc::kRecordAwaitsWord;
  gradient.flags |= ipc::kRecordAwaitsWord;
  for (const ipc::Record& each : {record, barrier, nothing}) a.Post(each);
  PostGradient(a, gradient);
  node.Settle();
  ExpectFailed(a, 1, Code::kInvalidArgument, {"segment 0"});
  ExpectFailed(a, 2, Code::kInvalidArgument, {});
  ExpectFailed(a, 3, Code::kInvalidArgument, {"segment 0"});
  ExpectFailed(a, 4, Code::kInvalidArgument, {});
  EXPECT_EQ(node.Counters().records_refused, 4U);
  EXPECT_EQ(node.dispatch().NextDeadline(), kNever) << "nothing is looked for";
}

TEST(Dispatch, ReportsALaneThatCouldNotMoveAStage) {
  HandDrivenNode node(Loopback({.failure_share = 1.0, .failure_code = Code::kInternal}));
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  ClientEnd& b = node.Attach(kPairFor100Ms, 1);
  a.Post(kSum);
  b.Post(kSum);
  node.Settle();
  for (const ClientEnd* rank : {&a, &b}) {
    ExpectFailed(*rank, 1, Code::kInternal, {"lane lane0", "operation 1"});
  }
  EXPECT_EQ(node.Counters().operations_failed, 1U);
}

}  // namespace
}  // namespace headrace::support
