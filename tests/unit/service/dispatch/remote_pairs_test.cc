// Sends and receives between nodes: two services driven by hand, and the notices between them
// carried by the test in the place of peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "service/session/send_notices.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

using service::SendNotice;
using service::SendNoticeKind;
using service::SendNotices;
using testing::ElementsAre;
using testing::HasSubstr;
using Ranks = std::vector<std::vector<std::uint32_t>>;

constexpr std::uint64_t kLong = 1200;  // elements, in several blocks of 1 KiB

struct World {
  explicit World(Ranks ranks_of_nodes = {{0, 1}, {2, 3}}, ClusterSpec spec = {}, bool form = true)
      : ranks(std::move(ranks_of_nodes)), cluster(With(spec, ranks.size())) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank);
        Fill(*clients[rank], 1000.0F * static_cast<float>(rank));
      }
    }
    if (form) cluster.Form(job, ranks);
    Advance(kMillisecond);
  }
  static ClusterSpec With(ClusterSpec spec, std::size_t nodes_count) {
    spec.nodes_count = static_cast<std::uint32_t>(nodes_count);
    return spec;
  }

  ClientEnd& operator[](std::size_t rank) { return *clients[rank]; }
  std::size_t NodeOf(std::uint32_t rank) const {
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      if (std::ranges::find(ranks[node], rank) != ranks[node].end()) return node;
    }
    return 0;
  }
  std::uint64_t Post(std::uint32_t rank, ipc::Record record, std::uint64_t at = 0) {
    record.offset = at * sizeof(float);
    return clients[rank]->Post(record);
  }
  // Lets everything happen, and carries notices until there are none.
  void Advance(TimeNs time_ns = 10 * kMillisecond) {
    do {
      cluster.Advance(time_ns);
    } while (Relay());
  }
  // As peers: each node's notices to the nodes that they are for. Returns whether there were any.
  bool Relay() {
    bool any = false;
    for (std::size_t from = 0; from < ranks.size(); ++from) {
      while (auto message = cluster.node(from).peers().Take<SendNotices>()) {
        any = true;
        for (const SendNotice& each : message->notices) {
          EXPECT_TRUE(CheckNotice(each).ok()) << static_cast<int>(each.kind);
          told.push_back(each);
        }
        const std::uint32_t to = std::exchange(message->node, static_cast<std::uint32_t>(from));
        if (lose) continue;
        cluster.node(to).Send(std::move(*message));
      }
    }
    return any;
  }
  std::vector<SendNoticeKind> Told() {
    std::vector<SendNoticeKind> kinds;
    for (const SendNotice& each : told) kinds.push_back(each.kind);
    told.clear();
    return kinds;
  }
  float Element(std::uint32_t rank, std::size_t at) { return clients[rank]->Elements<float>()[at]; }
  std::uint64_t Open(std::size_t node) {
    return cluster.node(node).JobRow(job.id)->operations_open;
  }
  // Nothing is left of what was: no queue row, no block, no stage.
  void ExpectNothingLeft() {
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      EXPECT_EQ(Open(node), 0U) << "node " << node;
      EXPECT_EQ(cluster.node(node).LaneRow(1).in_flight_stages, 0U) << "node " << node;
    }
  }

  Ranks ranks;
  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;  // by rank
  std::vector<SendNotice> told;
  bool lose = false;
};

TEST(RemotePairs, CopyFromTheSenderToTheReceiverWhoeverComesFirst) {
  for (const bool send_first : {true, false}) {
    for (const std::uint64_t count : {0UL, 1UL, 100UL, kLong}) {
      World world;
      if (send_first) world.Post(0, SendTo(3, count, 7), 5);
      if (send_first) world.Advance();
      if (send_first) ExpectOpen(world[0], 1);
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

TEST(RemotePairs, MoveNothingBeforeTheyAreMatched) {
  World world;
  world.Post(0, SendTo(3, kLong, 7));
  world.Advance();
  EXPECT_THAT(world.Told(), ElementsAre(SendNoticeKind::kAnnounced));
  EXPECT_EQ(world.cluster.exchange(0).counters().messages_sent, 0U);
  EXPECT_EQ(world.Open(1), 1U);
}

TEST(RemotePairs, KeepTheOrderOfEachTripleAndNoOther) {
  World world;
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
  World world;
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
  World world({{0, 1}, {2, 3}}, {}, false);
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
  World world(Ranks{{0}, {1}}, {.credit_bytes = 1024});
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
    World world;
    if (send_first) world.Post(0, SendTo(2, 4, 3));
    world.Advance();
    world.Post(2, ReceiveFrom(0, 5, 3));
    world.Advance();
    if (!send_first) world.Post(0, SendTo(2, 4, 3));
    world.Advance();
    for (const std::uint32_t rank : {0U, 2U}) {
      ExpectFailed(world[rank], 1, Code::kMismatch, {"send of 4 float32", "receive of 5 float32"});
    }
    world.ExpectNothingLeft();
    world.Post(0, SendTo(2, 4, 3));
    world.Post(2, ReceiveFrom(0, 4, 3));
    world.Advance();
    ExpectOk(world[2], 2);
  }
}

TEST(RemotePairs, AReceiveThatTimesOutLeavesTheMessageToTheNext) {
  World world;
  ipc::Record receive = ReceiveFrom(0, 4, 3);
  receive.timeout_ms = 50;
  world.Post(2, receive, 100);
  world.Advance(100 * kMillisecond);
  ExpectFailed(world[2], 1, Code::kTimeout, {"rank 0 on node a has not posted its send"});
  world.ExpectNothingLeft();
  world.Post(0, SendTo(2, 4, 3), 7);
  world.Advance();
  ExpectOpen(world[0], 1);
  world.Post(2, ReceiveFrom(0, 4, 3), 200);
  world.Advance();
  ExpectOk(world[0], 1);
  EXPECT_EQ(world.Element(2, 200), 7);
  EXPECT_EQ(world.Element(2, 100), 2100) << "nothing came for the first";
}

TEST(RemotePairs, ASendThatTimesOutFailsItsReceiveAndNoOther) {
  World world;
  ipc::Record send = SendTo(2, 4, 3);
  send.timeout_ms = 50;
  world.Post(0, send, 7);
  world.Post(0, SendTo(2, 4, 3), 8);
  world.Advance(100 * kMillisecond);
  ExpectFailed(world[0], 1, Code::kTimeout, {"rank 2 on node b has not posted its receive"});
  ExpectOpen(world[0], 2);
  world.Post(2, ReceiveFrom(0, 4, 3), 100);
  world.Post(2, ReceiveFrom(0, 4, 3), 200);
  world.Advance();
  ExpectFailed(world[2], 1, Code::kTimeout, {"has not posted its receive"});
  ExpectOk(world[2], 2);
  EXPECT_EQ(world.Element(2, 200), 8);
  world.ExpectNothingLeft();
}

TEST(RemotePairs, ARecordThatCannotBeCarriedOutFailsItsOtherSide) {
  World world;
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
  world.Post(0, SendTo(2, 4, 3));
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
      World world({{0, 1}, {2, 3}}, {.network = {.ns_per_byte = 500}});
      ipc::Record send = SendTo(2, kLong, 3);
      ipc::Record receive = ReceiveFrom(0, kLong, 3);
      (who == 0 ? send : receive).timeout_ms = 1;
      world.Post(2, receive, 2000);
      world.Post(0, send);
      for (TimeNs i = 0; i < steps; ++i) {
        world.cluster.Advance(50 * kMicrosecond);
        world.Relay();
      }
      world.Advance(20 * kMillisecond);
      world.Advance(20 * kMillisecond);
      // A receive that times out before it is matched leaves the message to the next.
      if (world.Open(0) > 0) {
        ASSERT_TRUE(who == 2 && world.Open(1) == 1) << "at step " << steps;
        world.Post(2, ReceiveFrom(0, kLong, 3), 4000);
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

TEST(RemotePairs, ARankThatLeavesEndsWhatWaitsForItOnTheOtherNode) {
  World world;
  world.Post(0, SendTo(2, 4, 3));       // nobody will receive it
  world.Post(1, ReceiveFrom(2, 4, 3));  // nor send this
  world.Advance();
  world.cluster.node(1).Close(world[2], true, "left the job");
  world.Advance();
  ExpectFailed(world[0], 1, Code::kPeerLost, {"rank 2 (pid", "left"});
  ASSERT_FALSE(world.cluster.node(1).peers().Of<service::RankLeft>().empty());
  world.cluster.node(0).Send(
      service::RankLeft{world.job.id, 2, 0, 0, "rank 2 (pid 9) on node b left the job"});
  world.Advance();
  ExpectFailed(world[1], 1, Code::kPeerLost, {"rank 2 (pid 9) on node b left the job"});
  world.Post(0, SendTo(2, 4, 3));
  world.Advance();
  ExpectFailed(world[0], 2, Code::kPeerLost, {"left the job"});
  world.ExpectNothingLeft();
}

TEST(RemotePairs, ASendToANodeThatAllRanksHaveLeftIsRefused) {
  World world(Ranks{{0}, {1}});
  world.cluster.node(1).Close(world[1], true, "left the job");
  world.Advance();
  EXPECT_FALSE(world.cluster.node(1).JobRow(world.job.id).has_value());
  world.Post(0, SendTo(1, 4, 3));
  world.Advance();
  ExpectFailed(world[0], 1, Code::kPeerLost, {"rank 1 has left the job"});
}

TEST(RemotePairs, PausedOnesGoOnWhenTheJobDoes) {
  World world;
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
  World world(Ranks{{0}, {1}});
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) {
    world.Post(0, SendTo(1, 1, 3), i);
    if (i % 100 == 0) world.Advance(kMillisecond);
  }
  world.Advance();
  EXPECT_EQ(world.Open(1), ipc::kOperationsMax);
  EXPECT_EQ(world.Open(0), ipc::kOperationsMax);
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) world.Post(1, ReceiveFrom(0, 1, 3), i);
  world.Advance();
  EXPECT_EQ(world.Element(1, 700), 700);
  world.ExpectNothingLeft();
}

TEST(RemotePairs, AreShownWithTheNodeOfTheirOtherSide) {
  World world;
  world.Post(0, SendTo(2, 4, 3));
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
  const auto told = [](World& world, SendNotice notice) {
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
  World twice;
  EXPECT_FALSE(told(twice, announced));
  EXPECT_TRUE(told(twice, announced));
  for (const SendNoticeKind kind : {SendNoticeKind::kReady, SendNoticeKind::kMayGo,
                                    SendNoticeKind::kWithdrawn, SendNoticeKind::kRefused}) {
    World world;
    SendNotice stray = announced;
    stray.kind = kind;
    stray.code = Code::kTimeout;
    stray.blocks = 3;
    EXPECT_FALSE(told(world, stray)) << "of a send that is not known";
  }
  World beyond;
  beyond.lose = true;
  beyond.Post(0, SendTo(2, 4, 1));
  beyond.Advance();
  ASSERT_EQ(beyond.told.size(), 1U);
  SendNotice go = beyond.told[0];
  go.kind = SendNoticeKind::kMayGo;
  go.blocks = 2;
  EXPECT_TRUE(told(beyond, go)) << "it has one block";
  ExpectFailed(beyond[0], 1, Code::kCorrupt, {"node b"});
}

// Operations that move in messages receive from other nodes, too, each by its own number.
TEST(RemotePairs, AreNeverCalledAsAnOperationIs) {
  World world(Ranks{{0}, {1}});
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
  World world(Ranks{{0}, {1}}, {.rails_count = kRails}, false);
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
  World world(Ranks{{0}, {1}});
  ipc::Record send = SendTo(1, kLong, 7);
  send.timeout_ms = 100;
  world.lose = true;
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
