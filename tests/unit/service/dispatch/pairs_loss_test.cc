// Sends and receives of ranks that leave or die, and of jobs that are drained, paused or cancelled.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

using Kind = service::Steering::Kind;

struct Trio {
  explicit Trio(const MakeTransport& make = Loopback({})) : node(make) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      ranks.push_back(&node.Attach({.name = "pipe", .world_size = 3}, rank));
    }
    node.Settle();
  }
  std::uint64_t Post(std::size_t rank, ipc::Record record) {
    const std::uint64_t number = ranks[rank]->PostApart(record);
    node.Settle();
    return number;
  }
  void Close(std::size_t rank, bool orderly) {
    node.Close(*ranks[rank], orderly, orderly ? "left the job" : kKilled);
    node.Settle();
  }
  void Steer(Kind kind) {
    node.Send(service::SteerJob{JobId{1}, {.kind = kind, .uid = 1000}});
    node.Settle();
  }

  HandDrivenNode node;
  std::vector<ClientEnd*> ranks;
};

TEST(PairsLoss, EndsWhatIsOpenWhenARankDiesBeforeItPosts) {
  Trio trio;
  trio.Post(0, SendTo(1, 4, 7));
  trio.Post(2, ReceiveFrom(1, 4, 7));
  trio.Close(1, false);
  ExpectFailed(*trio.ranks[0], 1, Code::kPeerLost, {"rank 1", "pid 1001", "pair 1", "float32"});
  ExpectFailed(*trio.ranks[2], 1, Code::kPeerLost, {"rank 1 (pid 1001)", "pair 2 [receive"});
  // And what is posted from now on.
  trio.Post(0, SendTo(2, 4, 7));
  ExpectFailed(*trio.ranks[0], 2, Code::kPeerLost, {"rank 1 (pid 1001)"});
  EXPECT_TRUE(trio.node.Discarded(*trio.ranks[1]));
}

TEST(PairsLoss, TellsBothSidesOnlyAfterTheLaneHasLetGo) {
  Trio trio(Loopback({.startup_ns = kSecond}));
  trio.Post(0, SendTo(1, 4, 7));
  trio.Post(1, ReceiveFrom(0, 4, 7));
  ASSERT_EQ(trio.node.transport().open().size(), 1U);
  trio.node.Close(*trio.ranks[0], false, kKilled);
  trio.node.TurnDispatch();
  ExpectOpen(*trio.ranks[1], 1);
  EXPECT_FALSE(trio.node.Discarded(*trio.ranks[0])) << "the lane may be reading it";
  trio.node.Settle();
  ExpectFailed(*trio.ranks[1], 1, Code::kPeerLost, {"rank 0 (pid 1000)"});
  EXPECT_TRUE(trio.node.Discarded(*trio.ranks[0]));
  EXPECT_EQ(trio.node.discarded_in_use(), 0U);
}

TEST(PairsLoss, OfARankThatDiesAfterItsMessageWasReceivedTakesNothingBack) {
  Trio trio;
  trio.Post(0, SendTo(1, 4, 7));
  trio.Post(1, ReceiveFrom(0, 4, 7));
  trio.Close(0, false);
  ExpectOk(*trio.ranks[1], 1);
}

TEST(PairsLoss, DeliversWhatARankSentBeforeItLeft) {
  Trio trio;
  trio.ranks[0]->Elements<float>()[0] = 42;
  trio.Post(0, SendTo(1, 1, 7));
  trio.Close(0, true);
  EXPECT_FALSE(trio.node.Discarded(*trio.ranks[0])) << "its message waits";
  const std::uint64_t number = trio.Post(1, ReceiveFrom(0, 1, 7));
  ExpectOk(*trio.ranks[1], number);
  EXPECT_EQ(trio.ranks[1]->Elements<float>()[0], 42);
  EXPECT_TRUE(trio.node.Discarded(*trio.ranks[0]));
  // Others go on among themselves.
  trio.Post(1, SendTo(2, 1));
  trio.Post(2, ReceiveFrom(1, 1));
  ExpectOk(*trio.ranks[2], 1);
}

TEST(PairsLoss, EndsWhatWaitsForARankThatLeaves) {
  Trio trio;
  trio.Post(0, SendTo(1, 4, 7));
  trio.Post(0, ReceiveFrom(ipc::kAnyRank, 4, 8));
  trio.Post(0, SendTo(2, 4, 9));
  trio.Close(1, true);
  ExpectFailed(*trio.ranks[0], 1, Code::kPeerLost, {"rank 1", "pid 1001", "pair 1"});
  ExpectOpen(*trio.ranks[0], 2);
  ExpectOpen(*trio.ranks[0], 3);
  trio.Post(0, SendTo(1, 4, 7));
  ExpectFailed(*trio.ranks[0], 4, Code::kPeerLost, {"rank 1"});
  // Nobody is left who could send.
  trio.Close(2, true);
  ExpectFailed(*trio.ranks[0], 2, Code::kPeerLost, {});
  trio.Post(0, ReceiveFrom(ipc::kAnyRank, 4, 8));
  ExpectFailed(*trio.ranks[0], 5, Code::kPeerLost, {});
}

TEST(PairsLoss, OfACancelledJobEndAtOnce) {
  Trio trio(Loopback({.startup_ns = kSecond}));
  trio.Post(0, SendTo(1, 4, 7));
  trio.Post(1, ReceiveFrom(0, 4, 7));
  trio.Post(2, ReceiveFrom(0, 4, 7));
  trio.Steer(Kind::kCancel);
  ExpectFailed(*trio.ranks[0], 1, Code::kCancelled, {"uid 1000", "pair 1"});
  ExpectFailed(*trio.ranks[1], 1, Code::kCancelled, {"uid 1000"});
  ExpectFailed(*trio.ranks[2], 1, Code::kCancelled, {"pair 2"});
}

TEST(PairsLoss, OfADrainedJobEndWellIfOneSideWasPosted) {
  Trio trio;
  trio.Post(0, SendTo(1, 4, 7));
  trio.Steer(Kind::kDrain);
  trio.Post(0, SendTo(2, 4, 7));
  ExpectFailed(*trio.ranks[0], 2, Code::kCancelled, {"uid 1000"});
  ExpectOpen(*trio.ranks[0], 1);
  EXPECT_EQ(trio.node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kRunning));
  trio.Post(1, ReceiveFrom(0, 4, 7));
  ExpectOk(*trio.ranks[0], 1);
  ExpectOk(*trio.ranks[1], 1);
  EXPECT_EQ(trio.node.JobRow(JobId{1})->state, static_cast<std::uint32_t>(ipc::JobState::kFailed));
}

TEST(PairsLoss, OfAPausedJobWaitUntilItGoesOn) {
  Trio trio;
  trio.Steer(Kind::kPause);
  trio.Post(0, SendTo(1, 4, 7));
  trio.Post(1, ReceiveFrom(0, 4, 7));
  trio.node.Advance(3600 * kSecond);
  ExpectOpen(*trio.ranks[0], 1);
  EXPECT_EQ(trio.node.QueueRow(JobId{1}, 1)->reason,
            static_cast<std::uint32_t>(ipc::WaitReason::kPaused));
  trio.Steer(Kind::kResume);
  ExpectOk(*trio.ranks[0], 1);
  ExpectOk(*trio.ranks[1], 1);
}

TEST(PairsLoss, OfAServiceThatDrainsEndWellIfOneSideWasPosted) {
  Trio trio;
  trio.Post(0, SendTo(1, 4, 7));
  trio.node.Send(service::Drain{trio.node.now + kSecond});
  trio.node.Settle();
  trio.Post(2, SendTo(1, 4, 7));
  ExpectFailed(*trio.ranks[2], 1, Code::kUnavailable, {});
  trio.Post(1, ReceiveFrom(0, 4, 7));
  ExpectOk(*trio.ranks[1], 1);
  EXPECT_EQ(trio.node.rpc().Of<service::Drained>().size(), 1U);
}

}  // namespace
}  // namespace headrace::support
