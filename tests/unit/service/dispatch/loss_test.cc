// Ranks that are lost or leave, and when their memory may be let go.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

TEST(Dispatch, EndsWhatOthersWaitForWhenARankIsLostBeforeItPosts) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  a.Post(Barrier());
  node.Settle();
  node.Close(b, false, kKilled);
  node.Settle();
  ExpectFailed(a, 1, Code::kPeerLost, {"rank 1", "pid 1001", "operation 0", "operation 1"});
  ExpectFailed(a, 2, Code::kPeerLost, {"rank 1 (pid 1001)", "operation 2 [barrier]"});
  EXPECT_TRUE(node.Discarded(b));
  // What is posted from now on ends at once.
  a.PostApart(kSum);
  node.Settle();
  ExpectFailed(a, 3, Code::kPeerLost, {"rank 1", "pid 1001"});
}

TEST(Dispatch, EndsTheOperationsOfARankThatIsLostWhileOthersHaveNotPosted) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  b.PostApart(kSum);
  node.Settle();
  node.Close(b, false, kKilled);
  node.Settle();
  EXPECT_TRUE(node.Discarded(b));
  a.PostApart(kSum);
  node.Settle();
  ExpectFailed(a, 1, Code::kPeerLost, {"rank 1", "pid 1001", "operation 1"});
}

TEST(Dispatch, TellsTheRanksOfALossOnlyAfterTheLaneHasLetGo) {
  HandDrivenNode node(Loopback({.startup_ns = kSecond}));
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  b.PostApart(kSum);
  node.Settle();
  ASSERT_EQ(node.transport().open().size(), 1U);
  node.Close(b, false, kKilled);
  node.TurnDispatch();
  ExpectOpen(a, 1);
  EXPECT_FALSE(node.Discarded(b)) << "the lane may be writing to it";
  node.TurnLane();
  EXPECT_TRUE(node.transport().open().empty());
  EXPECT_FALSE(node.Discarded(b));
  node.TurnDispatch();
  ExpectFailed(a, 1, Code::kPeerLost, {"rank 1 (pid 1001)"});
  EXPECT_TRUE(node.Discarded(b));
  EXPECT_EQ(node.discarded_in_use(), 0U);
}

TEST(Dispatch, CancelsAStageThatTheLaneHoldsBack) {
  HandDrivenNode node(Loopback({.transfers_max = 1, .startup_ns = kSecond}));
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  for (ClientEnd* rank : {&a, &b}) {
    rank->PostApart(kSum);
    rank->PostApart(kSum);
  }
  node.Settle();
  node.Close(b, false, kKilled);
  node.Settle();
  ExpectFailed(a, 1, Code::kPeerLost, {"rank 1 (pid 1001)"});
  ExpectFailed(a, 2, Code::kPeerLost, {"rank 1 (pid 1001)"});
  EXPECT_TRUE(node.Discarded(b));
  EXPECT_EQ(node.LaneRow().in_flight_bytes, 0U);
}

TEST(Dispatch, TellsOfTheLossEvenWhenTheStageEndedBeforeItsCancel) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  b.PostApart(kSum);
  node.TurnDispatch();
  node.TurnLane();  // ended, and its message waits behind the loss
  node.Close(b, false, kKilled);
  node.Settle();
  ExpectOk(a, 1);
  a.PostApart(kSum);
  node.Settle();
  ExpectFailed(a, 2, Code::kPeerLost, {"after operation 1"});
}

TEST(Dispatch, LetsAnEndedStageAndALateCancelPassEachOther) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  b.PostApart(kSum);
  node.TurnDispatch();
  node.Close(b, false, kKilled);
  node.TurnDispatch();  // the lane gets start and cancel together
  node.Settle();
  ExpectFailed(a, 1, Code::kPeerLost, {"rank 1"});
  EXPECT_TRUE(node.Discarded(b));
}

TEST(Dispatch, LosesARankThatHasNothingOpenWithoutHarm) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  b.PostApart(kSum);
  node.Settle();
  node.Close(b, false, kKilled);
  node.Settle();
  ExpectOk(a, 1);
  EXPECT_TRUE(node.Discarded(b));
  EXPECT_FALSE(node.Discarded(a));
  node.Close(a, true, "left the job");
  node.Settle();
  EXPECT_TRUE(node.Discarded(a));
  EXPECT_EQ(node.RowsInUse(), 0U);
  EXPECT_TRUE(node.doorbells().watched.empty());
}

TEST(Dispatch, FinishesWhatARankPostedBeforeItLeft) {
  HandDrivenNode node(Loopback({.startup_ns = kMillisecond}));
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  Fill(b, 1);
  b.PostApart(kSum);
  b.PostApart(kSum);
  a.PostApart(kSum);
  node.Settle();
  node.Close(b, true, "left the job");
  node.Settle();
  EXPECT_FALSE(node.Discarded(b));
  a.PostApart(kSum);
  a.PostApart(kSum);
  node.Settle();
  ExpectFailed(a, 3, Code::kPeerLost, {"rank 1", "pid 1001", "operation 2"});
  node.Advance(5 * kMillisecond);
  ExpectOk(a, 1);
  ExpectOk(a, 2);
  ExpectOk(b, 2);
  EXPECT_EQ(a.Elements<float>()[0], 1);
  EXPECT_TRUE(node.Discarded(b));
  EXPECT_EQ(node.discarded_in_use(), 0U);
}

TEST(Dispatch, ReadsTheLastRecordsOfARankThatLeaves) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  node.Settle();
  // The message that the rank leaves overtakes its records.
  for (int i = 0; i < 100; ++i) b.Post(Barrier());
  node.Close(b, true, "left the job");
  node.Settle();
  for (int i = 0; i < 101; ++i) a.Post(Barrier());
  node.Settle();
  for (std::uint64_t i = 1; i <= 100; ++i) ExpectOk(a, i);
  ExpectFailed(a, 101, Code::kPeerLost, {"operation 100"});
}

TEST(Dispatch, TreatsARankThatLeavesACorruptRingAsBroken) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  node.Settle();
  b.PostGarbage(99);
  node.Close(b, true, "left the job");
  node.Settle();
  ExpectFailed(a, 1, Code::kCorrupt, {"rank 1 (pid 1001)", "submission ring"});
  EXPECT_TRUE(node.Discarded(b));
}

TEST(Dispatch, EndsWhatALeavingRankDidNotPost) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  a.PostApart(kSum);
  node.Settle();
  node.Close(b, true, "left the job");
  node.Settle();
  ExpectFailed(a, 1, Code::kPeerLost, {"rank 1", "pid 1001", "operation 0"});
  EXPECT_NE(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kFailed));
}

TEST(Dispatch, NamesTheLostRankBeforeOneThatLeft) {
  HandDrivenNode node;
  const JobSpec trio{.world_size = 3};
  ClientEnd& a = node.Attach(trio, 0);
  ClientEnd& b = node.Attach(trio, 1);
  ClientEnd& c = node.Attach(trio, 2);
  node.Settle();
  node.Close(b, true, "left the job");
  node.Close(c, false, kKilled);
  node.Settle();
  a.PostApart(kSum);
  node.Settle();
  ExpectFailed(a, 1, Code::kPeerLost, {"rank 2", "pid 1002"});
  EXPECT_EQ(node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kFailed));
}

TEST(Dispatch, KeepsTheMemoryOfALostRankThatAnotherMoveStillUses) {
  HandDrivenNode node(Loopback({.piece_size = 8, .ns_per_byte = 1e6}));
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  for (ClientEnd* rank : {&a, &b}) rank->PostApart(kSum);
  node.Settle();
  node.Advance(9 * kMillisecond);  // one piece is done
  node.Close(a, false, kKilled);
  node.Close(b, false, kKilled);
  node.TurnDispatch();
  EXPECT_TRUE(node.watch_tap().discarded.empty());
  node.Settle();
  EXPECT_TRUE(node.Discarded(a));
  EXPECT_TRUE(node.Discarded(b));
  EXPECT_EQ(node.discarded_in_use(), 0U);
  EXPECT_EQ(node.RowsInUse(), 0U);
}

TEST(Dispatch, ClosesASessionItNeverHeardOf) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  node.Close(a, false, kKilled);
  node.Close(a, false, kKilled);
  node.Settle();
  EXPECT_EQ(node.Counters().sessions_closed, 1U);
  EXPECT_EQ(node.watch_tap().discarded.size(), 1U);
}

TEST(Dispatch, RefusesASessionWhoseDoorbellCannotBeHeard) {
  HandDrivenNode node;
  node.doorbells().refuse = true;
  ClientEnd& a = node.Attach(kPair, 0);
  node.Settle();
  const auto broken = node.rpc().Of<service::SessionBroken>();
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_EQ(broken[0]->session, a.id());
  EXPECT_TEXT(broken[0]->error.text());
  const auto discarded = node.rpc().Of<service::SessionDiscarded>();
  ASSERT_EQ(discarded.size(), 1U) << "what is booked on it goes";
  EXPECT_EQ(discarded[0]->session, a.id());
  EXPECT_EQ(node.watch_tap().mappings_discarded, 1U) << "the segment that came after it";
  EXPECT_EQ(node.RowsInUse(), 0U);
}

TEST(Dispatch, SaysOnceInTheEventsWhyAJobFailed) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPair, 0);
  ClientEnd& b = node.Attach(kPair, 1);
  for (int i = 0; i < 20; ++i) a.PostApart(kSum);
  node.Settle();
  node.Close(b, false, kKilled);
  node.Settle();
  ASSERT_EQ(node.watch_tap().events.size(), 1U);
  EXPECT_TEXT(node.watch_tap().events[0], "rank 1", "pid 1001", "job job");
}

TEST(Dispatch, DoesNotLetOneJobFillTheEvents) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 1}, 0);
  ipc::Record bad = kSum;
  bad.kind = 99;
  for (int i = 0; i < 500; ++i) a.Post(bad);
  node.Settle();
  EXPECT_EQ(node.watch_tap().events.size(), 65U);
  EXPECT_TEXT(node.watch_tap().events.back());
}

}  // namespace
}  // namespace headrace::support
