// Whom a stage between nodes waits for: on the board within a moment, in an event after the bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

using testing::IsEmpty;

using Ranks = std::vector<std::vector<std::uint32_t>>;

struct LateCluster {
  explicit LateCluster(Ranks ranks_of_nodes, TimeNs bound_ns = 5 * kSecond)
      : ranks(std::move(ranks_of_nodes)),
        cluster({.nodes_count = static_cast<std::uint32_t>(ranks.size())}) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      cluster.node(node).dispatch().ReportLate(bound_ns);
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank);
      }
    }
    cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
    for (std::size_t node = 0; node < ranks.size(); ++node) events(node).clear();
  }
  std::vector<std::string>& events(std::size_t node) {
    return cluster.node(node).watch_tap().events;
  }
  ipc::QueueRow Row(std::size_t node) { return *cluster.node(node).QueueRow(job.id, 1); }

  Ranks ranks;
  JobSpec job{.name = "bert", .world_size = 0, .timeout_ms = 600'000, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;
};

TEST(StragglerMonitorNodes, ShowWhichNodeAStageWaitsForSoon) {
  LateCluster late(Ranks{{0}, {1}, {2}});
  late.clients[0]->Post(kSum);
  late.clients[1]->Post(kSum);
  late.cluster.Advance(50 * kMillisecond);
  EXPECT_EQ(late.Row(0).reason, static_cast<std::uint32_t>(ipc::WaitReason::kNone));
  late.cluster.Advance(500 * kMillisecond);
  EXPECT_EQ(late.Row(0).reason, static_cast<std::uint32_t>(ipc::WaitReason::kPeer));
  EXPECT_EQ(ipc::GetText(late.Row(0).peer), "c");
  EXPECT_EQ(late.Row(0).lane, 1);
  EXPECT_THAT(late.events(0), IsEmpty()) << "that is no report yet";
  late.clients[2]->Post(kSum);
  late.cluster.Advance(kSecond);
  ExpectOk(*late.clients[0], 1);
}

TEST(StragglerMonitorNodes, ShowWhichNodeAStageWaitsForWithoutAnyReport) {
  LateCluster late(Ranks{{0}, {1}, {2}}, 0);
  late.clients[0]->Post(kSum);
  late.clients[1]->Post(kSum);
  late.cluster.Advance(20 * kSecond);
  EXPECT_EQ(late.Row(0).reason, static_cast<std::uint32_t>(ipc::WaitReason::kPeer));
  EXPECT_EQ(ipc::GetText(late.Row(0).peer), "c");
  EXPECT_THAT(late.events(0), IsEmpty());
  late.clients[2]->Post(kSum);
  late.cluster.Advance(kSecond);
  ExpectOk(*late.clients[0], 1);
}

TEST(StragglerMonitorNodes, ReportTheNodeOnceAndThatItWentOn) {
  LateCluster late(Ranks{{0}, {1}, {2}});
  late.clients[0]->Post(kSum);
  late.clients[1]->Post(kSum);
  late.cluster.Advance(20 * kSecond);
  for (const std::size_t node : {0U, 1U}) {
    ASSERT_EQ(late.events(node).size(), 1U) << "node " << node;
    EXPECT_TEXT(late.events(node)[0], "operation 1", "float32", "rank 2", "lane net0", "node c");
  }
  EXPECT_THAT(late.events(2), IsEmpty()) << "nobody there has posted it";
  late.clients[2]->Post(kSum);
  late.cluster.Advance(kSecond);
  ASSERT_EQ(late.events(0).size(), 2U);
  EXPECT_TEXT(late.events(0)[1], "20.");
}

TEST(StragglerMonitorNodes, TellTheOtherNodesOfALateRank) {
  LateCluster late(Ranks{{0}, {1, 2}});
  late.clients[0]->Post(kSum);
  late.clients[1]->Post(kSum);
  late.cluster.Advance(20 * kSecond);
  ASSERT_EQ(late.events(1).size(), 1U);
  EXPECT_TEXT(late.events(1)[0], "rank 2", "pid 1002", "operation 1");
  const auto told = late.cluster.node(1).peers().Of<service::RankLate>();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0]->job, late.job.id);
  EXPECT_TEXT(told[0]->text, "rank 2", "pid 1002", "operation 1", "float32", "node b");
  EXPECT_TRUE(late.cluster.node(0).peers().Of<service::RankLate>().empty());
}

TEST(StragglerMonitorNodes, StopLookingWhenNothingIsOpen) {
  LateCluster late(Ranks{{0}, {1}});
  for (ClientEnd* client : late.clients) client->Post(kSum);
  late.cluster.Advance(kSecond);
  ExpectOk(*late.clients[0], 1);
  const TimeNs now = late.cluster.now();
  EXPECT_GT(late.cluster.node(0).dispatch().NextDeadline(), now + 100 * kSecond);
}

}  // namespace
}  // namespace headrace::support
