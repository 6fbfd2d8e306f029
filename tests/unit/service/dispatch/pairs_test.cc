// Sends and receives: who is matched with whom, what moves, what people see, and bad input.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "ipc/board_text.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

struct PairedRanks {
  explicit PairedRanks(const MakeTransport& make = Loopback({}), std::uint32_t world_size = 3)
      : node(make) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      all.push_back(&node.Attach({.name = "pipe", .world_size = world_size}, rank));
      Fill(*all.back(), 1000.0F * static_cast<float>(rank));
    }
    node.Settle();
  }
  ClientEnd& operator[](std::size_t rank) { return *all[rank]; }
  // Posts in the memory from element `at` on.
  std::uint64_t Post(std::size_t rank, ipc::Record record, std::uint64_t at = 0) {
    record.offset = at * sizeof(float);
    const std::uint64_t number = all[rank]->Post(record);
    node.Settle();
    return number;
  }
  float Element(std::size_t rank, std::size_t at) { return all[rank]->Elements<float>()[at]; }

  HandDrivenNode node;
  std::vector<ClientEnd*> all;
};

TEST(Pairs, CopyFromTheSenderToTheReceiverWhoeverComesFirst) {
  for (const bool send_first : {true, false}) {
    PairedRanks ranks;
    if (send_first) ranks.Post(0, SendTo(2, 100, 7), 5);
    if (send_first) ExpectOpen(ranks[0], 1);
    ranks.Post(2, ReceiveFrom(0, 100, 7), 300);
    if (!send_first) ExpectOpen(ranks[2], 1);
    if (!send_first) ranks.Post(0, SendTo(2, 100, 7), 5);
    ExpectOk(ranks[0], 1);
    ExpectOk(ranks[2], 1);
    EXPECT_EQ(ranks[2].SourceOf(1), 0U);
    EXPECT_EQ(ranks.Element(2, 300), 5);
    EXPECT_EQ(ranks.Element(2, 399), 104);
    EXPECT_EQ(ranks.Element(2, 400), 2400) << "beyond what was received";
    EXPECT_EQ(ranks.Element(0, 5), 5) << "the sender's memory is only read";
    // One transfer, of two members: no copy in between.
    EXPECT_EQ(ranks.node.transport().accepted.size(), 1U);
    EXPECT_EQ(ranks.node.RowsInUse(), 4U);
  }
}

TEST(Pairs, KeepTheOrderOfEachTripleAndNoOther) {
  PairedRanks ranks;
  ranks.Post(0, SendTo(1, 1, 7), 10);
  ranks.Post(0, SendTo(1, 1, 7), 11);
  ranks.Post(0, SendTo(1, 1, 8), 12);
  ranks.Post(2, SendTo(1, 1, 7), 13);
  ranks.Post(1, ReceiveFrom(2, 1, 7), 0);
  ranks.Post(1, ReceiveFrom(0, 1, 8), 1);
  ranks.Post(1, ReceiveFrom(0, 1, 7), 2);
  ranks.Post(1, ReceiveFrom(0, 1, 7), 3);
  EXPECT_EQ(ranks.Element(1, 0), 2013);
  EXPECT_EQ(ranks.Element(1, 1), 12);
  EXPECT_EQ(ranks.Element(1, 2), 10);
  EXPECT_EQ(ranks.Element(1, 3), 11);
}

TEST(Pairs, ReceiveFromAnyRankTakesTheSendThatWasPostedFirst) {
  PairedRanks ranks;
  ranks.Post(2, SendTo(1, 1, 7), 20);
  ranks.Post(0, SendTo(1, 1, 7), 21);
  ranks.Post(0, SendTo(1, 1, 8), 22);
  ranks.Post(1, ReceiveFrom(ipc::kAnyRank, 1, 7), 0);
  ExpectOk(ranks[1], 1);
  EXPECT_EQ(ranks[1].SourceOf(1), 2U);
  EXPECT_EQ(ranks.Element(1, 0), 2020);
  ranks.Post(1, ReceiveFrom(ipc::kAnyRank, 1, 7), 1);
  EXPECT_EQ(ranks[1].SourceOf(2), 0U);
  EXPECT_EQ(ranks.Element(1, 1), 21);
  ExpectOpen(ranks[0], 2);
}

TEST(Pairs, SendIsTakenByTheReceiveThatWasPostedFirstWhetherFromAnyRankOrFromOne) {
  PairedRanks ranks;
  ranks.Post(1, ReceiveFrom(ipc::kAnyRank, 1, 7), 0);
  ranks.Post(1, ReceiveFrom(0, 1, 7), 1);
  ranks.Post(1, ReceiveFrom(ipc::kAnyRank, 1, 7), 2);
  ranks.Post(0, SendTo(1, 1, 7), 30);
  ranks.Post(0, SendTo(1, 1, 7), 31);
  ranks.Post(2, SendTo(1, 1, 7), 32);
  EXPECT_EQ(ranks.Element(1, 0), 30);
  EXPECT_EQ(ranks.Element(1, 1), 31);
  EXPECT_EQ(ranks.Element(1, 2), 2032);
  EXPECT_EQ(ranks[1].SourceOf(3), 2U);
}

TEST(Pairs, AreNotCountedAmongTheOperationsThatEveryRankPosts) {
  PairedRanks ranks;
  ranks.Post(0, SendTo(1, 4), 100);
  for (std::size_t rank = 0; rank < 3; ++rank) ranks.Post(rank, kSum);
  ranks.Post(1, ReceiveFrom(0, 4), 200);
  for (std::size_t rank = 0; rank < 3; ++rank) ranks.Post(rank, kSum, 40);
  ExpectOk(ranks[0], 1);
  ExpectOk(ranks[0], 2);
  ExpectOk(ranks[0], 3);
  ExpectOk(ranks[2], 2);
}

TEST(Pairs, MoveNothingWhereThereIsNothingToMove) {
  PairedRanks ranks;
  ranks.Post(0, SendTo(1, 0));
  ranks.Post(1, ReceiveFrom(0, 0));
  ExpectOk(ranks[0], 1);
  ExpectOk(ranks[1], 1);
  EXPECT_TRUE(ranks.node.transport().accepted.empty());
}

TEST(Pairs, AreCountedInTheRowOfTheirJob) {
  PairedRanks ranks;
  const auto row = [&ranks] { return *ranks.node.JobRow(JobId{1}); };
  ranks.Post(0, SendTo(1, 100));
  ranks.Post(0, SendTo(2, 100));
  ranks.Post(2, ReceiveFrom(1, 50), 200);
  EXPECT_EQ(row().sends_waiting, 3U);
  EXPECT_EQ(row().sends_ended, 0U);
  ranks.Post(1, ReceiveFrom(0, 100));
  EXPECT_EQ(row().sends_waiting, 2U);
  EXPECT_EQ(row().sends_ended, 1U);
  EXPECT_EQ(row().receives_ended, 1U);
  EXPECT_EQ(row().sends_bytes, 100 * sizeof(float));
  // One that ends with an error counts as neither.
  ranks.Post(1, SendTo(2, 51), 300);
  EXPECT_EQ(row().sends_waiting, 1U);
  EXPECT_EQ(row().sends_ended + row().receives_ended, 2U);
}

TEST(Pairs, ThatDifferInCountOrTypeEndOnBothSides) {
  PairedRanks ranks;
  ranks.Post(0, SendTo(1, 4, 3));
  ranks.Post(1, ReceiveFrom(0, 5, 3));
  for (const std::size_t rank : {0U, 1U}) {
    ExpectFailed(ranks[rank], 1, Code::kMismatch,
                 {"rank 0", "pid 1000", "float32", "rank 1", "tag 3", "pid 1001"});
  }
  ipc::Record bytes = ReceiveFrom(0, 4, 3);
  bytes.dtype = static_cast<std::uint8_t>(DType::kInt32);
  ranks.Post(1, bytes);
  ranks.Post(0, SendTo(1, 4, 3));
  ExpectFailed(ranks[0], 2, Code::kMismatch, {"4 int32", "4 float32"});
  ExpectFailed(ranks[1], 2, Code::kMismatch, {"4 int32", "4 float32"});
  // The next pair of the triple is as good as ever.
  ranks.Post(0, SendTo(1, 4, 3));
  ranks.Post(1, ReceiveFrom(0, 4, 3));
  ExpectOk(ranks[1], 3);
}

TEST(Pairs, OfNoSuchRankEndForWhoPostedThemAlone) {
  PairedRanks ranks;
  const auto refused = [&](ipc::Record record, const char* text) {
    const std::uint64_t number = ranks.Post(0, record);
    ExpectFailed(ranks[0], number, Code::kInvalidArgument,
                 {"rank 0 (pid 1000)", "field root", text});
  };
  refused(SendTo(3, 4), "the job has 3 ranks");
  refused(ReceiveFrom(3, 4), "the job has 3 ranks");
  refused(SendTo(0, 4), "no rank sends to itself");
  refused(ReceiveFrom(0, 4), "no rank sends to itself");
  refused(SendTo(ipc::kAnyRank, 4), "the job has 3 ranks");
  EXPECT_EQ(ranks.node.Counters().records_refused, 5U);
  PairedRanks alone(Loopback({}), 1);
  alone.Post(0, ReceiveFrom(ipc::kAnyRank, 4));
  ExpectFailed(alone[0], 1, Code::kInvalidArgument, {});
}

TEST(Pairs, ThatARecordSpoilsEndForWhoWaitsOrComes) {
  ipc::Record bad = ReceiveFrom(0, 4, 3);
  bad.timeout_ms = UINT32_MAX;
  for (const bool bad_first : {true, false}) {
    PairedRanks ranks;
    if (bad_first) ranks.Post(1, bad);
    ranks.Post(0, SendTo(1, 4, 3));
    if (!bad_first) ranks.Post(1, bad);
    for (const std::size_t rank : {0U, 1U}) {
      ExpectFailed(ranks[rank], 1, Code::kInvalidArgument, {"rank 1 (pid 1001)", "4294967295"});
    }
    ranks.Post(0, SendTo(1, 4, 3));
    ranks.Post(1, ReceiveFrom(0, 4, 3));
    ExpectOk(ranks[0], 2);
  }
}

TEST(Pairs, WriteNoMemoryThatAnotherOpenPostUses) {
  PairedRanks ranks;
  ranks.Post(1, ReceiveFrom(0, 16, 1), 0);
  ranks.Post(1, ReceiveFrom(0, 16, 2), 8);
  ExpectFailed(ranks[1], 2, Code::kInvalidArgument,
               {"rank 1", "pid 1001", "float32", "pair 1 [receive", "32 bytes"});
  // Two sends only read it.
  ranks.Post(0, SendTo(1, 16, 4), 0);
  ranks.Post(0, SendTo(2, 16, 4), 0);
  ExpectOpen(ranks[0], 1);
  ExpectOpen(ranks[0], 2);
  ranks.Post(0, ReceiveFrom(2, 16, 4), 0);
  ExpectFailed(ranks[0], 3, Code::kInvalidArgument, {"pair"});
}

TEST(Pairs, TimeOutWithWhoIsMissing) {
  PairedRanks ranks;
  ipc::Record send = SendTo(1, 4, 3);
  send.timeout_ms = 50;
  ranks.Post(0, send);
  ipc::Record receive = ReceiveFrom(ipc::kAnyRank, 4, 9);
  receive.timeout_ms = 70;
  ranks.Post(2, receive);
  ranks.node.Advance(50 * kMillisecond);
  ExpectFailed(ranks[0], 1, Code::kTimeout,
               {"pair 1", "float32", "rank 0", "rank 1", "tag 3", "pid 1001"});
  ExpectOpen(ranks[2], 1);
  ranks.node.Advance(20 * kMillisecond);
  ExpectFailed(ranks[2], 1, Code::kTimeout, {"float32", "rank 2", "tag 9"});
}

TEST(Pairs, LoseNoMessageWithoutTellingItsReceiver) {
  PairedRanks ranks;
  ipc::Record send = SendTo(1, 4, 3);
  send.timeout_ms = 50;
  ranks.Post(0, send, 10);
  ranks.node.Advance(50 * kMillisecond);
  ranks.Post(0, SendTo(1, 4, 3), 20);
  // The first receive is that of the message that was lost.
  ranks.Post(1, ReceiveFrom(0, 4, 3), 0);
  ExpectFailed(ranks[1], 1, Code::kTimeout, {"pair 1 [send", "timed out"});
  ranks.Post(1, ReceiveFrom(0, 4, 3), 0);
  ExpectOk(ranks[1], 2);
  EXPECT_EQ(ranks.Element(1, 0), 20);
  // A receive that came too early for its message takes none away.
  ipc::Record receive = ReceiveFrom(0, 4, 3);
  receive.timeout_ms = 50;
  ranks.Post(1, receive, 50);
  ranks.node.Advance(50 * kMillisecond);
  ExpectFailed(ranks[1], 3, Code::kTimeout, {"rank 0", "pid 1000"});
  ranks.Post(0, SendTo(1, 4, 3), 30);
  ranks.Post(1, ReceiveFrom(0, 4, 3), 50);
  EXPECT_EQ(ranks.Element(1, 50), 30);
}

TEST(Pairs, AreBoundedByRankAndTheNextIsRefusedByName) {
  PairedRanks ranks;
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) {
    ipc::Record send = SendTo(1, 1, i);
    send.timeout_ms = 10;
    ranks.Post(0, send);
  }
  ranks.node.Advance(10 * kMillisecond);
  const std::uint64_t number = ranks.Post(0, SendTo(1, 1, 5000));
  ExpectFailed(ranks[0], number, Code::kExhausted, {"rank 0", "pid 1000", "1024"});
  // Whoever learns of one makes room for another; and others have room of their own.
  ranks.Post(1, ReceiveFrom(0, 1, 77));
  ExpectFailed(ranks[1], 1, Code::kTimeout, {"pair 78 [send"});
  ranks.Post(1, ReceiveFrom(0, 1, 5001));
  ExpectOpen(ranks[1], 2);
  const std::uint64_t next = ranks.Post(0, SendTo(1, 1, 5001));
  ExpectOk(ranks[0], next);
  ExpectOk(ranks[1], 2);
}

TEST(Pairs, ShowOnTheBoardWhomTheyWaitForWithTagAndRanks) {
  PairedRanks ranks;
  ranks.Post(0, SendTo(1, 4, 7));
  ranks.Post(2, ReceiveFrom(ipc::kAnyRank, 4, 9));
  const ipc::QueueRow send = *ranks.node.QueueRow(JobId{1}, 1);
  EXPECT_EQ(send.kind, static_cast<std::uint8_t>(ipc::kSend));
  EXPECT_EQ(send.reason, static_cast<std::uint32_t>(ipc::WaitReason::kNoReceive));
  EXPECT_EQ(send.wait_argument, 1U);
  EXPECT_EQ(send.source, 0U);
  EXPECT_EQ(send.target, 1U);
  EXPECT_EQ(send.tag, 7U);
  EXPECT_EQ(send.ranks_missing, 0b010U);
  const ipc::QueueRow receive = *ranks.node.QueueRow(JobId{1}, 2);
  EXPECT_EQ(receive.kind, static_cast<std::uint8_t>(ipc::kReceive));
  EXPECT_EQ(receive.reason, static_cast<std::uint32_t>(ipc::WaitReason::kNoSend));
  EXPECT_EQ(receive.source, ipc::kAnyRank);
  EXPECT_EQ(receive.ranks_missing, 0b011U);
  EXPECT_EQ(ranks.node.JobRow(JobId{1})->operations_open, 2U);
}

TEST(Pairs, ThatWaitLongAreReportedOnce) {
  PairedRanks ranks;
  ranks.node.dispatch().ReportLate(5 * kSecond);
  ranks.Post(0, SendTo(1, 4, 7));
  for (int second = 0; second < 9; ++second) ranks.node.Advance(kSecond);
  ASSERT_EQ(std::size(ranks.node.watch_tap().events), 1U);
  EXPECT_TEXT(ranks.node.watch_tap().events[0], "pair 1", "float32", "rank 0", "rank 1", "tag 7",
              "pid 1001");
  ranks.Post(1, ReceiveFrom(0, 4, 7));
  ASSERT_EQ(ranks.node.watch_tap().events.size(), 2U);
  EXPECT_TEXT(ranks.node.watch_tap().events[1], "9.0 s");
}

TEST(Pairs, GoBeforeBlocksOfOperationsThatWait) {
  // The lane has room for two stages; bulk of the job's waits behind them.
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}), 4096);
  std::array<ClientEnd*, 2> ranks{};
  for (const std::uint32_t rank : {0U, 1U}) ranks[rank] = &node.Attach({}, rank);
  for (int i = 0; i < 6; ++i) {
    for (ClientEnd* const rank : ranks) {
      rank->PostApart(OnSegment(Collective::kAllReduce, DType::kFloat32, 512));
    }
  }
  node.Settle();
  ipc::Record record = SendTo(1, 16);
  record.offset = 32768;
  const std::uint64_t send = ranks[0]->Post(record);
  record = ReceiveFrom(0, 16);
  record.offset = 32768;
  const std::uint64_t receive = ranks[1]->Post(record);
  node.Settle();
  while (!ranks[1]->HasEnded(receive)) node.Advance(kMillisecond);
  ExpectOk(*ranks[0], send);
  ExpectOpen(*ranks[0], 4);
  for (int i = 0; i < 10; ++i) node.Advance(kMillisecond);
  ExpectOk(*ranks[0], 6);
}

TEST(Pairs, HoldASegmentThatIsReleasedMeanwhile) {
  PairedRanks ranks;
  ranks.Post(0, SendTo(1, 4, 7));
  ranks.node.Send(service::RemoveSegment{ranks[0].id(), SegmentId{0}, 5});
  ranks.node.Settle();
  const auto removed = ranks.node.rpc().Of<service::SegmentRemoved>();
  ASSERT_EQ(removed.size(), 1U);
  EXPECT_EQ(removed[0]->status.error().code(), Code::kBusy);
  EXPECT_TEXT(removed[0]->status.error().text(), "pair 1", "send");
}

}  // namespace
}  // namespace headrace::support
