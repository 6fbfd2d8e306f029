// Sends and receives between nodes: services driven by hand, over a simulated network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/remote_world.h"

namespace headrace::support {
namespace {

using service::SendNotice;
using service::SendNoticeKind;
using service::SendNotices;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RemotePairs, CopyFromTheSenderToTheReceiverWhoeverComesFirst) {
  for (const bool send_first : {true, false}) {
    for (const std::uint64_t count : {0UL, 1UL, 100UL, RemoteWorld::kLong}) {
      RemoteWorld world;
      if (send_first) world.Post(0, SendTo(3, count, 7), 5);
      if (send_first) world.Advance();
      // One that is short ends with its announcement; one without elements waits.
      const bool is_short = count > 0 && count < RemoteWorld::kLong;
      if (send_first && is_short) ExpectOk(world[0], 1);
      if (send_first && !is_short) ExpectOpen(world[0], 1);
      world.Post(3, ReceiveFrom(0, count, 7), 300);
      if (!send_first) world.Advance();
      if (!send_first) ExpectOpen(world[3], 1);
      if (!send_first) world.Post(0, SendTo(3, count, 7), 5);
      world.Advance();
      ExpectOk(world[0], 1);
      ExpectOk(world[3], 1);
      EXPECT_EQ(world[3].SourceOf(1), 0U);
      for (std::uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(world.Element(3, 300 + i), 5.0F + static_cast<float>(i));
      }
      EXPECT_EQ(world.Element(3, 300 + count), 3300.0F + static_cast<float>(count));
      world.ExpectNothingLeft();
    }
  }
}

TEST(RemotePairs, MoveNothingThatIsLongBeforeTheyAreMatched) {
  RemoteWorld world;
  world.Post(0, SendTo(3, RemoteWorld::kLong, 7));
  world.Advance();
  EXPECT_THAT(world.Told(), ElementsAre(SendNoticeKind::kAnnounced));
  EXPECT_LT(world.cluster.exchange(0).counters().bytes_sent, RemoteWorld::kLong);
  EXPECT_EQ(world.Open(1), 1U);
}

TEST(RemotePairs, KeepTheOrderOfEachTripleAndNoOther) {
  RemoteWorld world;
  world.Post(0, SendTo(2, 1, 7), 10);
  world.Post(0, SendTo(2, 1, 7), 11);
  world.Post(0, SendTo(2, 1, 8), 12);
  world.Post(1, SendTo(2, 1, 7), 13);
  world.Post(3, SendTo(2, 1, 7), 14);
  world.Advance();
  world.Post(2, ReceiveFrom(1, 1, 7), 0);
  world.Post(2, ReceiveFrom(0, 1, 8), 1);
  world.Post(2, ReceiveFrom(0, 1, 7), 2);
  world.Post(2, ReceiveFrom(0, 1, 7), 3);
  world.Post(2, ReceiveFrom(3, 1, 7), 4);
  world.Advance();
  EXPECT_EQ(world.Element(2, 0), 1013);
  EXPECT_EQ(world.Element(2, 1), 12);
  EXPECT_EQ(world.Element(2, 2), 10);
  EXPECT_EQ(world.Element(2, 3), 11);
  EXPECT_EQ(world.Element(2, 4), 3014);
}

TEST(RemotePairs, ReceiveFromAnyRankOfAnyNode) {
  RemoteWorld world;
  world.Post(2, ReceiveFrom(ipc::kAnyRank, 1, 7), 0);
  world.Post(2, ReceiveFrom(ipc::kAnyRank, 1, 7), 1);
  world.Advance();
  world.Post(1, SendTo(2, 1, 7), 30);
  world.Advance();
  world.Post(3, SendTo(2, 1, 7), 31);
  world.Advance();
  EXPECT_EQ(world[2].SourceOf(1), 1U);
  EXPECT_EQ(world.Element(2, 0), 1030);
  EXPECT_EQ(world[2].SourceOf(2), 3U);
  EXPECT_EQ(world.Element(2, 1), 3031);
}

TEST(RemotePairs, ThatWerePostedBeforeTheNodesMetAreMatchedThen) {
  RemoteWorld world({{0, 1}, {2, 3}}, {}, false);
  world.Post(0, SendTo(2, 4, 7), 1);
  world.Post(0, SendTo(2, 4, 7), 2);
  world.Post(2, ReceiveFrom(0, 4, 7), 100);
  world.Post(2, ReceiveFrom(0, 4, 7), 200);
  world.Advance();
  ExpectOpen(world[0], 1);
  world.cluster.Form(world.job, world.ranks);
  world.Advance();
  EXPECT_EQ(world.Element(2, 100), 1);
  EXPECT_EQ(world.Element(2, 200), 2);
}

// Two nodes full of receives, with credit for one block: sends have credit of their own.
TEST(RemotePairs, NeverWaitForEachOthersReceives) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}}, {.credit_bytes = 1024});
  for (std::uint64_t i = 0; i < 40; ++i) {
    world.Post(0, ReceiveFrom(1, 50, i), 2000 + 50 * i);
    world.Post(1, ReceiveFrom(0, 50, i), 2000 + 50 * i);
  }
  for (std::uint64_t i = 40; i-- > 0;) {
    world.Post(0, SendTo(1, 50, i), 50 * i);
    world.Post(1, SendTo(0, 50, i), 50 * i);
  }
  world.Advance();
  for (const std::uint32_t rank : {0U, 1U}) {
    for (std::uint64_t sequence = 1; sequence <= 80; ++sequence) ExpectOk(world[rank], sequence);
    EXPECT_EQ(world.Element(rank, 2000 + 50 * 17), 1000.0F * static_cast<float>(1 - rank) + 850);
  }
  world.ExpectNothingLeft();
}

TEST(RemotePairs, ThatDifferInCountOrTypeEndOnBothSides) {
  for (const bool send_first : {true, false}) {
    RemoteWorld world;
    if (send_first) world.Post(0, SendTo(2, RemoteWorld::kLong, 3));
    world.Advance();
    world.Post(2, ReceiveFrom(0, 5, 3));
    world.Advance();
    if (!send_first) world.Post(0, SendTo(2, RemoteWorld::kLong, 3));
    world.Advance();
    for (const std::uint32_t rank : {0U, 2U}) {
      ExpectFailed(world[rank], 1, Code::kMismatch,
                   {"send of 17000 float32", "receive of 5 float32"});
    }
    world.ExpectNothingLeft();
    world.Post(0, SendTo(2, 4, 3));
    world.Post(2, ReceiveFrom(0, 4, 3));
    world.Advance();
    ExpectOk(world[2], 2);
  }
}

TEST(RemotePairs, AReceiveThatTimesOutLeavesTheMessageToTheNext) {
  RemoteWorld world;
  ipc::Record receive = ReceiveFrom(0, 4, 3);
  receive.timeout_ms = 50;
  world.Post(2, receive, 100);
  world.Advance(100 * kMillisecond);
  ExpectFailed(world[2], 1, Code::kTimeout, {"rank 0 on node a has not posted its send"});
  world.ExpectNothingLeft();
  world.Post(0, SendTo(2, 4, 3), 7);
  world.Advance();
  world.Post(2, ReceiveFrom(0, 4, 3), 200);
  world.Advance();
  ExpectOk(world[0], 1);
  EXPECT_EQ(world.Element(2, 200), 7);
  EXPECT_EQ(world.Element(2, 100), 2100) << "nothing came for the first";
}

TEST(RemotePairs, ASendThatTimesOutFailsItsReceiveAndNoOther) {
  RemoteWorld world;
  ipc::Record send = SendTo(2, RemoteWorld::kLong, 3);
  send.timeout_ms = 50;
  world.Post(0, send, 7);
  world.Post(0, SendTo(2, RemoteWorld::kLong, 3), 8);
  world.Post(0, SendTo(2, 4, 3), 9);
  world.Advance(100 * kMillisecond);
  ExpectFailed(world[0], 1, Code::kTimeout, {"rank 2 on node b has not posted its receive"});
  ExpectOpen(world[0], 2);
  world.Post(2, ReceiveFrom(0, RemoteWorld::kLong, 3), 100);
  world.Post(2, ReceiveFrom(0, RemoteWorld::kLong, 3), 200);
  world.Post(2, ReceiveFrom(0, 4, 3), 0);
  world.Advance();
  ExpectFailed(world[2], 1, Code::kTimeout, {"has not posted its receive"});
  ExpectOk(world[2], 2);
  EXPECT_EQ(world.Element(2, 200), 8);
  ExpectOk(world[2], 3);
  EXPECT_EQ(world.Element(2, 0), 9);
  world.ExpectNothingLeft();
}

TEST(RemotePairs, ARecordThatCannotBeCarriedOutFailsItsOtherSide) {
  RemoteWorld world;
  ipc::Record bad = SendTo(2, 4, 3);
  bad.parts = 1;
  world.Post(0, bad);
  world.Post(2, ReceiveFrom(0, 4, 3));
  world.Advance();
  ExpectFailed(world[0], 1, Code::kInvalidArgument, {"parts"});
  ExpectFailed(world[2], 1, Code::kInvalidArgument, {"rank 0 (pid", "parts"});
  bad = ReceiveFrom(0, 4, 3);
  bad.parts = 1;
  world.Post(2, bad);
  world.Advance();
  world.Post(0, SendTo(2, RemoteWorld::kLong, 3));
  world.Advance();
  ExpectFailed(world[2], 2, Code::kInvalidArgument, {"parts"});
  ExpectFailed(world[0], 2, Code::kInvalidArgument, {"rank 2 (pid", "parts"});
  world.ExpectNothingLeft();
}

// A transfer is stopped at any moment, from either side: both end, once, with one cause, and what
// comes after is as good as ever.
TEST(RemotePairs, EndOnBothSidesWhenOneTimesOutAtAnyMoment) {
  for (const std::uint32_t who : {0U, 2U}) {
    std::size_t failed = 0;
    for (TimeNs steps = 0; steps < 60; ++steps) {
      RemoteWorld world({{0, 1}, {2, 3}}, {.network = {.ns_per_byte = 150}});
      ipc::Record send = SendTo(2, RemoteWorld::kLong, 3);
      ipc::Record receive = ReceiveFrom(0, RemoteWorld::kLong, 3);
      (who == 0 ? send : receive).timeout_ms = 1;
      world.Post(2, receive, 2000);
      world.Post(0, send);
      for (TimeNs i = 0; i < steps; ++i) {
        world.cluster.Advance(50 * kMicrosecond);
      }
      world.Advance(20 * kMillisecond);
      world.Advance(20 * kMillisecond);
      // A receive that times out before it is matched leaves the message to the next.
      if (world.Open(0) > 0) {
        ASSERT_TRUE(who == 2 && world.Open(1) == 1) << "at step " << steps;
        world.Post(2, ReceiveFrom(0, RemoteWorld::kLong, 3), 4000);
        world.Advance(20 * kMillisecond);
      }
      ASSERT_TRUE(world[0].HasEnded(1)) << "rank " << who << " at step " << steps;
      ASSERT_TRUE(world[2].HasEnded(1)) << "rank " << who << " at step " << steps;
      const ipc::Outcome received = world[2].Read(1);
      if (received.code != Code::kOk) {
        ++failed;
        EXPECT_THAT(received.text, HasSubstr("timed out"));
      }
      world.Post(2, ReceiveFrom(0, 10, 4), 2000);
      world.Post(0, SendTo(2, 10, 4));
      world.Advance();
      ExpectOk(world[0], 2);
      ExpectOk(world[2], world[2].posted());
      world.ExpectNothingLeft();
    }
    EXPECT_GT(failed, 0U);
  }
}

TEST(RemotePairs, PausedOnesGoOnWhenTheJobDoes) {
  RemoteWorld world;
  const auto steer = [&](SteeringKind kind) {
    for (std::size_t node = 0; node < 2; ++node) {
      world.cluster.node(node).Send(service::SteerJob{world.job.id, {.kind = kind}});
    }
    world.Advance();
  };
  steer(SteeringKind::kPause);
  ipc::Record receive = ReceiveFrom(0, 4, 3);
  receive.timeout_ms = 30;
  world.Post(2, receive, 100);
  world.Post(0, SendTo(2, 4, 3), 9);
  world.Advance(100 * kMillisecond);
  ExpectOpen(world[0], 1);
  ExpectOpen(world[2], 1);
  steer(SteeringKind::kResume);
  ExpectOk(world[0], 1);
  ExpectOk(world[2], 1);
  EXPECT_EQ(world.Element(2, 100), 9);
}

TEST(RemotePairs, AreBoundedByRank) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) {
    world.Post(0, SendTo(1, 1, 3), i);
    if (i % 100 == 0) world.Advance(kMillisecond);
  }
  world.Advance();
  EXPECT_EQ(world.Open(1), ipc::kOperationsMax);
  // A quarter have ended, and count as long as nobody has received them.
  EXPECT_EQ(world.Open(0), ipc::kOperationsMax - ipc::kOperationsMax / 4);
  world.Post(0, SendTo(1, 1, 3), 4000);
  world.Advance();
  ExpectFailed(world[0], ipc::kOperationsMax + 1, Code::kExhausted, {"rank 0 (pid", "1024 sends"});
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) world.Post(1, ReceiveFrom(0, 1, 3), i);
  world.Advance();
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) {
    ASSERT_EQ(world.Element(1, i), static_cast<float>(i));
  }
  world.Post(0, SendTo(1, 1, 3), 4000);
  world.Advance();
  ExpectOk(world[0], ipc::kOperationsMax + 2);
  world.Post(1, ReceiveFrom(0, 1, 3), 0);
  world.Advance();
  world.ExpectNothingLeft();
}

TEST(RemotePairs, AreShownWithTheNodeOfTheirOtherSide) {
  RemoteWorld world;
  world.Post(0, SendTo(2, RemoteWorld::kLong, 3));
  world.Advance();
  for (const std::size_t node : {0U, 1U}) {
    const auto row = world.cluster.node(node).QueueRow(world.job.id, 1);
    ASSERT_TRUE(row.has_value());
    EXPECT_EQ(row->tag, 3U);
    EXPECT_EQ(row->source, 0U);
    EXPECT_EQ(row->target, 2U);
    EXPECT_EQ(row->reason, static_cast<std::uint32_t>(ipc::WaitReason::kNoReceive));
    EXPECT_STREQ(row->peer, node == 0 ? "b" : "a");
  }
}

// What no honest service says ends the job, or nothing.
TEST(RemotePairs, WhatMakesNoSenseEndsTheJobByName) {
  const auto told = [](RemoteWorld& world, SendNotice notice) {
    world.cluster.node(0).Send(SendNotices{world.job.id, 1, {std::move(notice)}});
    world.Advance();
    return !world.cluster.node(0).peers().Of<service::JobFailed>().empty();
  };
  const SendNotice announced{.kind = SendNoticeKind::kAnnounced,
                             .send = service::kSendNamesBegin + 77,
                             .source = 2,
                             .target = 0,
                             .tag = 1,
                             .count = 4,
                             .dtype = DType::kFloat32};
  RemoteWorld twice;
  EXPECT_FALSE(told(twice, announced));
  EXPECT_TRUE(told(twice, announced));
  for (const SendNoticeKind kind :
       {SendNoticeKind::kReady, SendNoticeKind::kMayGo, SendNoticeKind::kWithdrawn,
        SendNoticeKind::kRefused, SendNoticeKind::kReceived}) {
    RemoteWorld world;
    SendNotice stray = announced;
    stray.kind = kind;
    stray.code = Code::kTimeout;
    stray.blocks = 3;
    if (!stray.FromSender()) std::swap(stray.source, stray.target);
    EXPECT_FALSE(told(world, stray)) << "of a send that is not known";
  }
  RemoteWorld elsewhere;
  SendNotice of_others = announced;
  of_others.source = 1;
  EXPECT_TRUE(told(elsewhere, of_others)) << "of a rank of node a";
  RemoteWorld too_much;
  SendNotice large = announced;
  large.count = service::kSendDataMax / sizeof(float);
  large.data.resize(service::kSendDataMax);
  for (std::size_t i = 0; i < service::kSendDataOpenMax / service::kSendDataMax;
       ++i, ++large.send) {
    EXPECT_FALSE(told(too_much, large));
  }
  EXPECT_TRUE(told(too_much, large)) << "more than it may have on its way";
  RemoteWorld too_many;
  SendNotice small = announced;
  for (std::size_t i = 0; i < ipc::kOperationsMax; ++i, ++small.send) {
    too_many.cluster.node(0).Send(SendNotices{too_many.job.id, 1, {small}});
    if (i % 100 == 0) too_many.Advance(kMillisecond);
  }
  EXPECT_FALSE(told(too_many, small)) << "it is refused, and its sender waits";
  ++small.send;
  small.data.resize(4 * sizeof(float));
  EXPECT_TRUE(told(too_many, small)) << "its sender has gone on";
  RemoteWorld unsent;
  unsent.Lose();
  unsent.Post(0, SendTo(2, RemoteWorld::kLong, 1));
  unsent.Advance();
  ASSERT_EQ(unsent.told.size(), 1U);
  SendNotice received = unsent.told[0];
  received.kind = SendNoticeKind::kReceived;
  EXPECT_TRUE(told(unsent, received)) << "what it was not sent";
  RemoteWorld beyond;
  beyond.Lose();
  beyond.Post(0, SendTo(2, RemoteWorld::kLong, 1));
  beyond.Advance();
  ASSERT_EQ(beyond.told.size(), 1U);
  SendNotice go = beyond.told[0];
  go.kind = SendNoticeKind::kMayGo;
  go.blocks = RemoteWorld::kLong * sizeof(float) / 1024 + 2;
  EXPECT_TRUE(told(beyond, go)) << "it has fewer blocks";
  ExpectFailed(beyond[0], 1, Code::kCorrupt, {"node b"});
}

// Operations that move in messages receive from other nodes, too, each by its own number.
TEST(RemotePairs, AreNeverCalledAsAnOperationIs) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  world.Post(0, SendTo(1, 4, 3));
  world.Advance();
  ASSERT_EQ(world.told.size(), 1U);
  SendNotice announced = world.told[0];
  EXPECT_TRUE(CheckNotice(announced).ok());
  announced.send = 1;
  EXPECT_EQ(CheckNotice(announced).error().code(), Code::kCorrupt);
}

// A node of the job that sends what it likes on one of several rails: there the receive runs ahead
// of the others.
TEST(RemotePairs, BytesThatComeBeforeTheyMightEndTheJobByName) {
  constexpr std::uint32_t kRails = 3;
  constexpr std::uint64_t kElements = 24;  // of a block
  constexpr std::uint64_t kBlocks = 60;
  constexpr std::uint64_t kName = service::kSendNamesBegin + 77;
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}}, {.rails_count = kRails}, false);
  world.cluster.Form(world.job, world.ranks, kElements * sizeof(float));
  world.Advance(kMillisecond);
  const SendNotice announced{.kind = SendNoticeKind::kAnnounced,
                             .send = kName,
                             .source = 0,
                             .target = 1,
                             .tag = 7,
                             .count = kElements * kBlocks,
                             .dtype = DType::kFloat32};
  world.cluster.node(1).Send(SendNotices{world.job.id, 0, {announced}});
  world.Post(1, ReceiveFrom(0, kElements * kBlocks, 7));
  world.cluster.Advance(kMillisecond);
  constexpr std::uint64_t kShare = kElements / kRails;
  for (int round = 0; round < 10; ++round) {
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      const transport::MessageHeader header{.key = world.cluster.KeyOf(world.job.id),
                                            .epoch = 1,
                                            .plan_version = 1,
                                            .position = kName << 16 | block,
                                            .count = kShare,
                                            .kind = static_cast<std::uint8_t>(ipc::kSend),
                                            .dtype = static_cast<std::uint8_t>(DType::kFloat32),
                                            .root = 1};
      world.cluster.network().Inject(world.cluster.WireName(1, 0), header,
                                     std::vector<std::byte>(kShare * sizeof(float)));
    }
    world.cluster.Advance(100 * kMicrosecond);
  }
  const auto failed = world.cluster.node(1).peers().Of<service::JobFailed>();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0]->code, Code::kCorrupt);
  world.cluster.CloseLinks(1, world.job.id, "the job has failed");
  world.cluster.Advance(kSecond);
  ExpectFailed(world[1], 1, Code::kCorrupt, {"node a", "rank 0"});
}

// Its link works, and it takes nothing.
TEST(RemotePairs, WhoDoesNotLetGoOfASendThatHasEndedEndsTheJobByName) {
  RemoteWorld world(RemoteWorld::Ranks{{0}, {1}});
  ipc::Record send = SendTo(1, RemoteWorld::kLong, 7);
  send.timeout_ms = 100;
  world.Lose();
  world.Post(0, send);
  world.Advance();
  ASSERT_EQ(world.told.size(), 1U);
  SendNotice go = world.told[0];
  go.kind = SendNoticeKind::kMayGo;
  go.blocks = 1;
  world.cluster.network().Dam(world.cluster.WireName(0, 0), world.cluster.WireName(1, 0));
  world.cluster.node(0).Send(SendNotices{world.job.id, 1, {go}});
  world.cluster.Advance(50 * kSecond);
  EXPECT_TRUE(world.cluster.node(0).peers().Of<service::JobFailed>().empty());
  ExpectOpen(world[0], 1);
  world.cluster.Advance(20 * kSecond);
  const auto failed = world.cluster.node(0).peers().Of<service::JobFailed>();
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0]->code, Code::kPeerLost);
  EXPECT_THAT(failed[0]->cause, HasSubstr("node b"));
  world.cluster.CloseLinks(0, world.job.id, "the job has failed");
  world.cluster.Advance(kSecond);
  ExpectFailed(world[0], 1, Code::kTimeout, {"timed out after 100 ms"});
}

}  // namespace
}  // namespace headrace::support
