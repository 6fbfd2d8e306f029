// A lane between nodes: groups opened, measured and closed as control asks, over the real exchange
// and a simulated network.
#include "service/lane/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "service/lane/lane.h"
#include "tests/support/expect_text.h"
#include "tests/support/loopback/simulated_wire.h"
#include "tests/support/recording.h"
#include "transport/exchange/exchange.h"

namespace headrace::service {
namespace {

using support::CountingWakeable;
using support::RecordingInbox;
using ::testing::HasSubstr;

constexpr TimeNs kLatency = 100 * kMicrosecond;
constexpr double kNsPerByte = 8;  // 1 Gbit/s

struct Node {
  Node(transport::Wire& wire, std::uint8_t index)
      : exchange(wire, {.name = "net0"}),
        lane(index, "net0", exchange, waker, wakeable, dispatch, peers) {}

  CountingWakeable wakeable;
  RecordingInbox<DispatchMessage> dispatch;
  RecordingInbox<PeersMessage> peers;
  LaneWaker waker{wakeable};
  transport::Exchange exchange;
  Lane lane;
};

struct Pair {
  Pair() {
    for (const char* name : {"a", "b"}) {
      transport::Wire& wire = network.AddWire(name);
      addresses.push_back(wire.address());
      nodes.push_back(std::make_unique<Node>(wire, 1));
    }
  }
  void Open(std::uint32_t group, std::uint32_t servers_count = 0) {
    for (std::uint32_t self = 0; self < 2; ++self) {
      transport::GroupOptions options;
      options.group = group;
      options.key = 77 + group;
      options.self = self;
      options.servers_count = servers_count;
      options.members = {{"a", addresses[0]}, {"b", addresses[1]}};
      Send(self, OpenGroup{options});
    }
  }
  void Send(std::size_t node, LaneMessage message) {
    ASSERT_TRUE(nodes[node]->lane.inbox().Send(std::move(message)));
  }
  void Advance(TimeNs time_ns) {
    const TimeNs end = network.now() + time_ns;
    Turn();
    while (network.now() < end) {
      network.AdvanceTo(std::min(end, std::max(network.NextDue(), network.now() + 1)));
      Turn();
    }
  }
  void Turn() {
    for (const auto& node : nodes) {
      while (node->lane.DoWork(network.now())) {
      }
    }
  }
  std::vector<const GroupMeasured*> Measured(std::size_t node) {
    return nodes[node]->peers.Of<GroupMeasured>();
  }

  transport::SimulatedNetwork network{
      {.latency_ns = kLatency, .ns_per_byte = kNsPerByte, .eager_size = 128 << 10}};
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<Node>> nodes;
};

TEST(Groups, AnswerPeersThatAreBehindOnceTheyHaveRoom) {
  Pair pair;
  pair.nodes[0]->peers.full = true;
  pair.Open(5);
  pair.Advance(kMillisecond);
  EXPECT_TRUE(pair.nodes[0]->peers.messages.empty());
  EXPECT_LE(pair.nodes[0]->lane.NextDeadline(), pair.network.now() + kMillisecond);
  pair.nodes[0]->peers.full = false;
  pair.Advance(kMillisecond);
  ASSERT_EQ(pair.nodes[0]->peers.Of<GroupOpened>().size(), 1U);
  for (std::size_t i = 0; i < 2; ++i) pair.Send(i, MeasureGroup{5});
  pair.nodes[0]->peers.full = true;
  pair.Advance(5 * kSecond);
  EXPECT_TRUE(pair.Measured(0).empty());
  pair.nodes[0]->peers.full = false;
  pair.Advance(kMillisecond);
  EXPECT_EQ(pair.Measured(0).size(), 1U);
}

TEST(Groups, AreOpenedAndMeasuredOnTheLanesOwnThreadOnly) {
  Pair pair;
  Lane& lane = pair.nodes[0]->lane;
  RecordingInbox<PeersMessage>& peers = pair.nodes[0]->peers;
  pair.Open(5);
  EXPECT_FALSE(lane.DoShortWork(0));
  EXPECT_TRUE(peers.messages.empty());
  EXPECT_FALSE(lane.PrepareToSleep());
  EXPECT_TRUE(lane.DoWork(0));
  EXPECT_EQ(peers.Of<GroupOpened>().size(), 1U);
  // What comes behind one that waits keeps its place; nobody measures what is closed.
  pair.Send(0, MeasureGroup{6});
  pair.Send(0, CloseGroup{.group = 5, .cause = "it ends"});
  pair.Send(0, MeasureGroup{5});
  EXPECT_FALSE(lane.DoShortWork(0));
  EXPECT_TRUE(pair.Measured(0).empty());
  EXPECT_TRUE(lane.DoWork(0));
  ASSERT_EQ(pair.Measured(0).size(), 2U);
  EXPECT_EQ(pair.Measured(0)[0]->group, 6U);
  EXPECT_FALSE(pair.Measured(0)[1]->cost);
}

TEST(Groups, MeasureTheSameLineOnEveryNode) {
  Pair pair;
  pair.Open(5);
  pair.Advance(kMillisecond);
  for (const auto& node : pair.nodes) {
    const auto opened = node->peers.Of<GroupOpened>();
    ASSERT_EQ(opened.size(), 1U);
    EXPECT_TRUE(opened[0]->status.ok());
    EXPECT_EQ(opened[0]->group, 5U);
    EXPECT_EQ(opened[0]->lane, 1);
  }
  for (std::size_t i = 0; i < 2; ++i) pair.Send(i, MeasureGroup{5});
  pair.Advance(5 * kSecond);
  ASSERT_EQ(pair.Measured(0).size(), 1U);
  ASSERT_EQ(pair.Measured(1).size(), 1U);
  const transport::CostLine line = pair.Measured(0)[0]->cost.value();
  EXPECT_EQ(line, pair.Measured(1)[0]->cost.value());
  // Two hops for small ones, and the link's own rate for large ones.
  EXPECT_GT(line.startup_s, 0.5e-4);
  EXPECT_LT(line.startup_s, 1e-3);
  EXPECT_NEAR(line.s_per_byte, kNsPerByte * 1e-9, 2e-9);
  EXPECT_TRUE(pair.nodes[0]->dispatch.messages.empty() ||
              pair.nodes[0]->dispatch.Of<StageEnded>().empty())
      << "dispatch does not hear of measurements";
}

// Others see only that their links are gone.
TEST(Groups, ReportTheFailureOfAGroupThatThisNodeServesToPeers) {
  for (const bool is_server : {true, false}) {
    Pair pair;
    pair.Open(5, is_server ? 1 : 0);
    pair.Advance(kMillisecond);
    transport::MessageHeader header{.key = 77 + 5,
                                    .position = 1,
                                    .count = 10,
                                    .kind = static_cast<std::uint8_t>(Collective::kAllReduce),
                                    .dtype = static_cast<std::uint8_t>(DType::kFloat32),
                                    .reduction = static_cast<std::uint8_t>(Reduction::kSum)};
    // Of another size than the header says.
    pair.network.Inject("b", header, std::vector<std::byte>(36));
    pair.Advance(kMillisecond);
    const auto failed = pair.nodes[1]->peers.Of<GroupFailed>();
    ASSERT_EQ(failed.size(), is_server ? 1U : 0U);
    if (!is_server) continue;
    EXPECT_EQ(failed[0]->group, 5U);
    EXPECT_EQ(failed[0]->code, Code::kMismatch);
    EXPECT_NE(failed[0]->cause.find("node a"), std::string::npos) << failed[0]->cause;
  }
}

TEST(Groups, AnswerAtOnceForAServerWhichMeasuresNothing) {
  Pair pair;
  pair.Open(5, 1);
  pair.Send(1, MeasureGroup{5});
  pair.Advance(kMillisecond);
  ASSERT_EQ(pair.Measured(1).size(), 1U);
  EXPECT_EQ(pair.Measured(1)[0]->cost.value().startup_s, 0);
}

TEST(Groups, SayWhyAMeasurementEndedEarly) {
  Pair pair;
  pair.Open(5);
  pair.Send(0, MeasureGroup{5});
  pair.Advance(10 * kMillisecond);
  EXPECT_TRUE(pair.Measured(0).empty()) << "the other node does not take part";
  pair.Send(0, CloseGroup{5, "node b is lost"});
  pair.Advance(kSecond);
  ASSERT_EQ(pair.Measured(0).size(), 1U);
  EXPECT_TEXT(pair.Measured(0)[0]->cost.error().text(), "node b");
  // Nothing of it is left.
  pair.Send(1, CloseGroup{5, "node a has left"});
  pair.Open(5);
  pair.Advance(10 * kMillisecond);
  EXPECT_TRUE(pair.nodes[0]->peers.Of<GroupOpened>().back()->status.ok());
}

TEST(Groups, RefuseToMeasureWhatIsNotOpen) {
  Pair pair;
  pair.Send(0, MeasureGroup{9});
  pair.Send(0, CloseGroup{9, "nothing"});
  pair.Send(0, SetCost{9, {1e-3, 1e-9}});
  pair.Advance(kMillisecond);
  ASSERT_EQ(pair.Measured(0).size(), 1U);
  EXPECT_EQ(pair.Measured(0)[0]->cost.error().code(), Code::kUnavailable);
}

// Node b never posts: dispatch of node a learns which member that is, and nothing of a stage that
// is not there.
TEST(Groups, TellDispatchWhomAStageWaitsFor) {
  Pair pair;
  pair.Open(5);
  std::vector<std::byte> memory(40000);
  transport::Transfer transfer{.token = 12,
                               .kind = Collective::kAllReduce,
                               .count = memory.size(),
                               .group = 5,
                               .position = 1,
                               .members_count = 2};
  transfer.members[0] = memory.data();
  pair.Send(0, StartStage{transfer});
  pair.Advance(kSecond);
  pair.Send(0, AskStage{12});
  pair.Send(0, AskStage{13});
  pair.Turn();
  const auto waits = pair.nodes[0]->dispatch.Of<StageWaits>();
  ASSERT_EQ(waits.size(), 2U);
  EXPECT_EQ(waits[0]->token, 12U);
  EXPECT_EQ(waits[0]->members, 0b10U);
  EXPECT_EQ(waits[1]->token, 13U);
  EXPECT_EQ(waits[1]->members, 0U);
}

TEST(Groups, AnswerAProbeAfterOneRoundThroughTheWire) {
  Pair pair;
  pair.Send(1, ProbeLane{70});
  EXPECT_TRUE(pair.nodes[1]->dispatch.messages.empty());
  pair.Turn();
  const auto answers = pair.nodes[1]->dispatch.Of<LaneAnswered>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0]->lane, 1);
  EXPECT_EQ(answers[0]->token, 70U);
  EXPECT_TRUE(answers[0]->status.ok());
}

// What a share does is the exchange's; here it must get there, and do no harm without a group.
TEST(Groups, PassAJobsShareToTheWire) {
  Pair pair;
  for (const std::uint32_t group : {5U, 6U}) pair.Open(group);
  pair.Advance(kMillisecond);
  for (std::size_t node = 0; node < 2; ++node) {
    pair.Send(node, SetShare{9, {.weight = 3}});
    pair.Send(node, SetShare{6, {.weight = 1, .priority = 1}});
  }
  std::vector<std::byte> memory(4 * 4'000'000);
  for (const std::uint32_t group : {5U, 6U}) {
    for (std::size_t node = 0; node < 2; ++node) {
      transport::Transfer transfer{.token = group,
                                   .kind = Collective::kAllReduce,
                                   .count = 4'000'000,
                                   .group = group,
                                   .position = 1,
                                   .members_count = 2};
      transfer.members[node] = memory.data() + 4'000'000 * (2 * (group - 5) + node);
      pair.Send(node, StartStage{transfer});
    }
  }
  pair.Advance(kSecond);
  const auto ended = pair.nodes[0]->dispatch.Of<StageEnded>();
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0]->completion.token, 6U) << "came later, and is of the better class";
}

TEST(Groups, TellDispatchOfStrangersAFewTimesASecondAtMost) {
  Pair pair;
  pair.Advance(kSecond);
  transport::MessageHeader header;
  header.key = 0xbad;
  for (int i = 0; i < 200; ++i) {
    pair.network.Inject("a", header, std::vector<std::byte>(64));
    pair.Advance(kMillisecond);
  }
  pair.Advance(kSecond);
  const auto facts = pair.nodes[0]->dispatch.Of<LaneFacts>();
  ASSERT_FALSE(facts.empty());
  EXPECT_LE(facts.size(), 3U);
  EXPECT_EQ(facts.back()->messages_dropped, 200U);
}

}  // namespace
}  // namespace headrace::service
