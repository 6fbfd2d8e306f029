// Messages that were announced with their bytes, whose sends have ended, and that nobody has
// received yet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/remote_world.h"

namespace headrace::support {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

// Both nodes get what people asked for, and what each then tells the other.
void DrainJob(RemoteWorld& world) {
  for (std::size_t node = 0; node < 2; ++node) {
    world.cluster.node(node).Send(
        service::SteerJob{world.job.id, {.kind = SteeringKind::kDrain, .uid = 1000}});
  }
  world.Advance();
  for (std::size_t from = 0; from < 2; ++from) {
    for (const auto* told : world.cluster.node(from).peers().Of<service::SteerJob>()) {
      for (std::size_t to = 0; to < 2; ++to) {
        service::Steering steering = told->steering;
        if (to != from) steering.node = HandDrivenCluster::NameOf(from);
        world.cluster.node(to).Send(service::SteerJob{world.job.id, steering});
      }
    }
  }
  world.Advance();
}

// The only rank of the first node sends 4 elements to rank 1, the first of which is 5, and leaves.
void LeaveAfterASend(RemoteWorld& world, std::uint32_t timeout_ms = 60'000) {
  ipc::Record send = SendTo(1, 4, 7);
  send.timeout_ms = timeout_ms;
  world.Post(0, send, 5);
  world.Advance();
  ExpectOk(world[0], 1);
  world.cluster.node(0).Close(world[0], true, "left the job");
  world.Advance();
}

std::size_t Events(RemoteWorld& world, std::size_t node) {
  return world.cluster.node(node).watch_tap().events.size();
}

// The sender has gone on: people see on its node what became of the message, and it makes room.
TEST(SentMessages, AreReportedWhereTheyWereSentIfTheyAreRefused) {
  RemoteWorld world;
  world.Post(0, SendTo(2, 4, 7));
  world.Advance();
  ExpectOk(world[0], 1);
  world.Post(2, ReceiveFrom(0, 5, 7));
  world.Advance();
  ExpectFailed(world[2], 1, Code::kMismatch, {"send of 4 float32", "receive of 5 float32"});
  EXPECT_THAT(world.cluster.node(0).watch_tap().events,
              Contains(AllOf(HasSubstr("send of 4 float32 from rank 0 to rank 2, tag 7"),
                             HasSubstr("was not received"))));
  world.Post(0, SendTo(2, 4, 7), 5);
  world.Post(2, ReceiveFrom(0, 4, 7), 500);
  world.Advance();
  ExpectOk(world[2], 2);
  EXPECT_EQ(world.Element(2, 500), 5);
  world.ExpectNothingLeft();
}

TEST(SentMessages, AreWaitedForByAServiceThatShutsDown) {
  RemoteWorld world;
  world.Post(0, SendTo(2, 4, 7), 5);
  world.Advance();
  ExpectOk(world[0], 1);
  world.cluster.node(0).Send(service::Drain{world.cluster.now() + 10 * kSecond});
  world.Advance();
  EXPECT_TRUE(world.cluster.node(0).rpc().Of<service::Drained>().empty());
  world.Post(2, ReceiveFrom(0, 4, 7), 500);
  world.Advance();
  ExpectOk(world[2], 1);
  EXPECT_FALSE(world.cluster.node(0).rpc().Of<service::Drained>().empty());
}

// One that nobody receives does not hold it for good.
TEST(SentMessages, EndTheirJobIfAShutdownHasWaitedLongEnough) {
  RemoteWorld world;
  world.Post(0, SendTo(2, 4, 7), 5);
  world.Advance();
  world.cluster.node(0).Send(service::Drain{world.cluster.now() + kSecond});
  world.Advance(2 * kSecond);
  EXPECT_FALSE(world.cluster.node(0).rpc().Of<service::Drained>().empty());
  ASSERT_EQ(world.cluster.node(0).peers().Of<service::JobFailed>().size(), 1U);
}

// Its sender's last rank has left: the job is over there, with all that it held.
TEST(SentMessages, AreReceivedAlthoughTheirRanksHaveLeft) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  HandDrivenNode& node = world.cluster.node(0);
  LeaveAfterASend(world);
  EXPECT_FALSE(node.JobRow(world.job.id).has_value());
  EXPECT_EQ(node.peers().Of<service::JobEnded>().size(), 1U);
  node.Send(service::Drain{world.cluster.now() + 10 * kSecond});
  world.Advance();
  EXPECT_TRUE(node.rpc().Of<service::Drained>().empty());
  world.Post(1, ReceiveFrom(0, 4, 7), 500);
  world.Advance();
  ExpectOk(world[1], 1);
  EXPECT_EQ(world.Element(1, 500), 5);
  EXPECT_FALSE(node.rpc().Of<service::Drained>().empty());
}

TEST(SentMessages, HoldUpNoShutdownWhenTheyCannotBeReceived) {
  for (const bool links_fail : {true, false}) {
    RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
    HandDrivenNode& node = world.cluster.node(0);
    LeaveAfterASend(world, 500);
    node.Send(service::Drain{world.cluster.now() + 100 * kSecond});
    world.Advance();
    EXPECT_TRUE(node.rpc().Of<service::Drained>().empty());
    if (links_fail) {
      node.Send(service::SendNotices{.job = world.job.id,
                                     .node = 1,
                                     .notices = {},
                                     .failure = Error(Code::kPeerLost, "it is gone")});
      world.Advance(kMillisecond);
    } else {
      world.Advance(kSecond);  // the send's time is over
    }
    EXPECT_FALSE(node.rpc().Of<service::Drained>().empty()) << links_fail;
  }
}

TEST(SentMessages, HoldUpNoShutdownThatHasWaitedLongEnough) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  HandDrivenNode& node = world.cluster.node(0);
  LeaveAfterASend(world);
  node.Send(service::Drain{world.cluster.now() + kSecond});
  world.Advance(2 * kSecond);
  EXPECT_FALSE(node.rpc().Of<service::Drained>().empty());
}

TEST(SentMessages, AreEventsThereIfTheirReceiverLeaves) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  LeaveAfterASend(world);
  world.cluster.node(1).Close(world[1], true, "left the job");
  world.Advance();
  EXPECT_THAT(world.cluster.node(0).watch_tap().events,
              Contains(AllOf(HasSubstr("what rank 0 sent to rank 1 before it left"),
                             HasSubstr("was not received: rank 1 (pid"))));
}

// The service there has them already.
TEST(SentMessages, AreReceivedWhileTheirReceiversServiceShutsDown) {
  RemoteWorld world;
  world.Post(3, OnSegment(Collective::kAllReduce, DType::kFloat32, 4), 100);  // keeps it up
  world.Advance();
  world.cluster.node(1).Send(service::Drain{world.cluster.now() + 10 * kSecond});
  world.Advance();
  world.Post(0, SendTo(2, 4, 7), 5);
  world.Advance();
  ExpectOk(world[0], 1);
  world.Post(2, ReceiveFrom(0, 4, 7), 500);
  world.Advance();
  ExpectOk(world[2], 1);
  EXPECT_EQ(world.Element(2, 500), 5);
}

TEST(SentMessages, TimeOutAndMakeRoom) {
  RemoteWorld world;
  constexpr std::uint64_t kShort = service::kSendDataMax / sizeof(float);
  ipc::Record send = SendTo(2, kShort, 7);
  send.timeout_ms = 50;
  for (int i = 0; i < 16; ++i) world.Post(0, send);
  world.Advance(kSecond);
  EXPECT_THAT(world.cluster.node(0).watch_tap().events, Contains(HasSubstr("was not received")));
  world.told.clear();
  world.Post(1, SendTo(3, 4, 9));  // another rank, to another rank
  world.Advance();
  ASSERT_FALSE(world.told.empty());
  EXPECT_FALSE(world.told[0].data.empty());
  ExpectOk(world[1], 1);
  world.Post(2, ReceiveFrom(0, kShort, 7), 20'000);
  world.Advance();
  ExpectFailed(world[2], 1, Code::kTimeout, {"rank 2 on node b has not posted its receive"});
}

TEST(SentMessages, DoNotKeepADrainFromItsEnd) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  ipc::Record send = SendTo(1, 4, 7);
  send.timeout_ms = 50;
  world.Post(0, send, 5);
  world.Advance();
  DrainJob(world);
  world.Advance(kSecond);
  for (std::size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(world.cluster.node(node).peers().Of<service::JobFailed>().size(), 1U) << node;
  }
}

// One side must not end well where the other is refused.
TEST(SentMessages, AreNoneOfAJobThatIsToBeDrained) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  world.Post(1, OnSegment(Collective::kAllReduce, DType::kFloat32, 4), 100);
  world.Advance();
  DrainJob(world);
  world.Post(1, ReceiveFrom(0, 4, 7), 500);  // its rank is where the drain ends
  world.Advance();
  ASSERT_TRUE(world[1].HasEnded(2));
  EXPECT_EQ(world[1].Read(2).code, Code::kCancelled);
  ipc::Record send = SendTo(1, 4, 7);
  send.timeout_ms = 50;
  world.Post(0, send, 5);  // its rank is not there yet
  world.Post(0, OnSegment(Collective::kAllReduce, DType::kFloat32, 4), 100);
  world.Advance(kSecond);
  ExpectOk(world[0], 2);
  ASSERT_TRUE(world[0].HasEnded(1));
  EXPECT_NE(world[0].Read(1).code, Code::kOk) << "nobody can receive it any more";
  for (std::size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(world.cluster.node(node).peers().Of<service::JobFailed>().size(), 1U) << node;
  }
}

// Sends that timed out are counted longer at their receiver's node.
TEST(SentMessages, NeverFindTheirReceiversNodeFull) {
  RemoteWorld world;
  ipc::Record send = SendTo(2, RemoteWorld::kLong, 3);
  send.timeout_ms = 50;
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) world.Post(0, send);
  world.Advance(kSecond);
  world.Post(0, SendTo(3, 4, 3), 7);
  world.Advance();
  EXPECT_TRUE(world.cluster.node(1).peers().Of<service::JobFailed>().empty());
  ASSERT_TRUE(world[0].HasEnded(ipc::kOperationsMax + 1));
  EXPECT_EQ(world[0].Read(ipc::kOperationsMax + 1).code, Code::kExhausted);
}

TEST(SentMessages, FillNoLogWhenTheyAreRefused) {
  RemoteWorld world;
  const std::size_t before = Events(world, 0);
  for (int i = 0; i < 200; ++i) {
    world.Post(0, SendTo(2, 4, 1));
    world.Post(2, ReceiveFrom(0, 5, 1));
    world.Advance(kMillisecond);
  }
  EXPECT_LE(Events(world, 0) - before, 65U);
}

TEST(SentMessages, AreCountedWhereTheirJobFails) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  world.Post(0, SendTo(1, 4, 7), 5);
  world.Advance();
  world.cluster.node(0).Send(
      service::JobFailed{world.job.id, Code::kPeerLost, "rank 1 on node b died"});
  world.Advance();
  EXPECT_THAT(world.cluster.node(0).watch_tap().events,
              Contains(HasSubstr("a message whose send had ended was not received")));
}

TEST(SentMessages, MakeNobodyLate) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  for (std::size_t node = 0; node < 2; ++node) {
    world.cluster.node(node).dispatch().ReportLate(kSecond);
  }
  world.Post(0, SendTo(1, 4, 7), 5);
  world.Advance(20 * kSecond);
  for (std::size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(world.cluster.node(node).Counters().late_reports, 0U);
  }
}

}  // namespace
}  // namespace headrace::support
