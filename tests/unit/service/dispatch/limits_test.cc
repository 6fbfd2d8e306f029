// Ranks that run far ahead of others, honestly or not.
#include <gtest/gtest.h>

#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

constexpr std::uint64_t kMax = ipc::kOperationsMax;

TEST(Dispatch, RefusesAnOperationThatIsAWholeRingAheadOfAnotherRank) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  ClientEnd& b = node.Attach(kPairFor100Ms, 1);
  for (std::uint64_t i = 0; i < kMax; ++i) a.Post(Barrier());
  node.Settle();
  EXPECT_FALSE(a.HasRoom());
  node.Advance(100 * kMillisecond);  // all time out, so that there is room
  ASSERT_TRUE(a.HasRoom());
  a.Post(Barrier());
  node.Settle();
  ExpectFailed(a, kMax + 1, Code::kExhausted,
               {"rank 1", "pid 1001", "1024", "operation 1 [barrier]"});
  // The other rank catches up: it learns of the timeouts, then of the refusal, and then both go on.
  for (std::uint64_t i = 0; i < kMax; ++i) b.Post(Barrier());
  node.Settle();
  ExpectFailed(b, 1, Code::kTimeout, {});
  ExpectFailed(b, kMax, Code::kTimeout, {"rank 1"});
  b.Post(Barrier());
  node.Settle();
  ExpectFailed(b, kMax + 1, Code::kExhausted, {"rank 0 (pid 1000)", "operation 1025"});
  a.Post(Barrier());
  b.Post(Barrier());
  node.Settle();
  ExpectOk(a, kMax + 2);
  ExpectOk(b, kMax + 2);
}

TEST(Dispatch, SurvivesARankThatDoesNotWaitForRoomWhileAStageMoves) {
  HandDrivenNode node(Loopback({.startup_ns = kSecond}));
  const JobSpec pair{.world_size = 2};
  ClientEnd& a = node.Attach(pair, 0);
  ClientEnd& b = node.Attach(pair, 1);
  a.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 16));
  b.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 16));
  node.Settle();
  ASSERT_EQ(node.transport().open().size(), 1U);
  for (std::uint64_t i = 2; i <= kMax; ++i) a.Post(Barrier(), true);
  node.Settle();
  a.Post(Barrier(), true);
  node.Settle();
  ExpectFailed(a, kMax + 1, Code::kExhausted, {"operation 1"});
  node.Advance(kSecond);
  ExpectOk(b, 1);
}

TEST(Dispatch, SurvivesARankThatDoesNotWaitForRoomWhileOthersAreMissing) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  for (std::uint64_t i = 0; i < 5 * kMax; ++i) {
    a.Post(Barrier(), true);
    if (i % 512 == 0) node.Settle();
  }
  node.Settle();
  node.Advance(100 * kMillisecond);
  node.Close(a, false, "exited or was killed");
  node.Settle();
  EXPECT_TRUE(node.Discarded(a));
  EXPECT_EQ(node.RowsInUse(), 0U);
}

TEST(Dispatch, SaysThatTheJobIsOverRatherThanThatARankIsBehind) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kPairFor100Ms, 0);
  ClientEnd& b = node.Attach(kPairFor100Ms, 1);
  a.Post(Barrier());
  node.Settle();
  node.Close(b, false, "exited or was killed");
  for (std::uint64_t i = 0; i < kMax + 5; ++i) {
    node.Settle();
    a.Post(Barrier());
  }
  node.Settle();
  ExpectFailed(a, a.posted(), Code::kPeerLost, {"rank 1 (pid 1001)"});
}

TEST(Dispatch, KeepsOneJobFromFillingALaneWithTinyStages) {
  HandDrivenNode node(Loopback({.startup_ns = 10 * kMillisecond}));
  ClientEnd& a = node.Attach({.world_size = 1}, 0);
  for (std::uint64_t i = 0; i < kMax; ++i)
    a.Post(OnSegment(Collective::kAllReduce, DType::kUInt8, 1, i));
  node.Settle();
  EXPECT_EQ(node.LaneRow().in_flight_stages, schedule::kInFlightStagesMax);
  EXPECT_EQ(node.LaneRow().queued_stages, kMax - schedule::kInFlightStagesMax);
  for (std::uint64_t i = 0; i < kMax; ++i) node.Advance(10 * kMillisecond);
  ExpectOk(a, kMax);
}

}  // namespace
}  // namespace headrace::support
