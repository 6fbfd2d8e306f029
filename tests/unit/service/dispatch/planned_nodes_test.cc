// Gradients that move by a plan, on several nodes: the unchanged dispatch, queue, lanes and
// exchange of each, over a simulated network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "service/dispatch/job/block.h"
#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using Ranks = std::vector<std::vector<std::uint32_t>>;

const Blocks kBlocks = {{{2, 100, 200}, {1, 0, 50}}, {{0, 0, 400}, {1, 50, 150}, {2, 0, 100}}};

struct PlannedFleet {
  explicit PlannedFleet(Ranks ranks_of_nodes, ClusterSpec spec = {})
      : ranks(std::move(ranks_of_nodes)), cluster(SpecOf(std::move(spec), ranks)) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank);
        Fill(*clients[rank], static_cast<float>(100 * rank));
        HandIn(cluster.node(node), *clients[rank], layout);
      }
    }
    cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
  }
  static ClusterSpec SpecOf(ClusterSpec spec, const Ranks& ranks) {
    spec.nodes_count = static_cast<std::uint32_t>(ranks.size());
    return spec;
  }
  // Each iteration ends in the time that is given; ranks but the first post so much later.
  void Iterate(std::uint64_t count, TimeNs time_ns = 10 * kMillisecond, TimeNs late_ns = 0) {
    for (std::uint64_t i = 0; i < count; ++i) {
      for (ClientEnd* client : clients) {
        for (std::uint32_t tensor = 0; tensor < 3; ++tensor) PostGradient(*client, *layout, tensor);
        cluster.Advance(client == clients.front() ? late_ns : 0);
      }
      cluster.Advance(time_ns);
    }
  }
  std::vector<service::TimesSeen> Reported(std::size_t node) {
    std::vector<service::TimesSeen> reported;
    for (const auto* each : cluster.node(node).peers().Of<service::TimesSeen>()) {
      reported.push_back(*each);
    }
    return reported;
  }
  void AdoptAll(const std::shared_ptr<const plan::Plan>& plan, std::uint64_t from) {
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      Adopt(cluster.node(node), job.id, plan, from);
    }
  }
  void ExpectSums(float times) const {
    const auto world = static_cast<float>(job.world_size);
    for (const ClientEnd* client : clients) {
      for (std::size_t i = 0; i < 900; ++i) {
        ASSERT_EQ(client->Elements<float>()[i],
                  times * (100 * world * (world - 1) / 2 + world * static_cast<float>(i)))
            << "rank " << client->rank() << " element " << i;
      }
    }
  }

  Ranks ranks;
  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::shared_ptr<const service::Layout> layout = PackedLayout({400, 200, 300});
  std::vector<ClientEnd*> clients;  // by rank
};

TEST(PlannedNodes, SumOverEveryRankOfEveryNode) {
  for (const Ranks& ranks : {Ranks{{0}, {1}}, Ranks{{0, 1}, {2}}, Ranks{{0}, {1}, {2}, {3}}}) {
    PlannedFleet fleet(ranks);
    fleet.AdoptAll(PlanOf(kBlocks), 1);
    for (ClientEnd* client : fleet.clients) {
      // Each rank has an order of its own.
      for (std::uint32_t i = 0; i < 3; ++i) {
        PostGradient(*client, *fleet.layout, (client->rank() + i) % 3);
      }
    }
    fleet.cluster.Advance(kSecond);
    for (const ClientEnd* client : fleet.clients) {
      for (std::uint64_t record = 1; record <= 3; ++record) ExpectOk(*client, record);
    }
    fleet.ExpectSums(1);
  }
}

TEST(PlannedNodes, SumByHalvesThatTravelApart) {
  for (const Ranks& ranks : {Ranks{{0}, {1}}, Ranks{{0, 1}, {2}}, Ranks{{0}, {1}, {2}, {3}}}) {
    PlannedFleet fleet(ranks);
    fleet.AdoptAll(HalvesOf(kBlocks), 1);
    for (std::uint32_t iteration = 1; iteration <= 2; ++iteration) {
      for (ClientEnd* client : fleet.clients) {
        Fill(*client, static_cast<float>(100 * client->rank()));
        for (std::uint32_t i = 0; i < 3; ++i) {
          PostGradient(*client, *fleet.layout, (client->rank() + i) % 3);
        }
      }
      fleet.cluster.Advance(kSecond);
      for (const ClientEnd* client : fleet.clients) {
        for (std::uint64_t record = 1; record <= 3; ++record) {
          ExpectOk(*client, 3 * (iteration - 1) + record);
        }
      }
      fleet.ExpectSums(1);
    }
  }
}

TEST(PlannedNodes, AreToldThatARankLeftBeforeItHandedInItsLayout) {
  const JobSpec job{.world_size = 2, .rendezvous = "a:7733"};
  HandDrivenCluster cluster({.nodes_count = 2});
  ClientEnd& stays = cluster.node(0).Attach(job, 0);
  ClientEnd& leaves = cluster.node(1).Attach(job, 1);
  const auto layout = PackedLayout({400});
  HandIn(cluster.node(0), stays, layout);
  cluster.Form(job, {{0}, {1}});
  cluster.Advance(kMillisecond);
  PostGradient(stays, *layout, 0);
  cluster.node(1).Close(leaves, true, "left the job");
  cluster.Advance(kMillisecond);
  const auto told = cluster.node(1).peers().Of<service::RankLeft>();
  ASSERT_EQ(told.size(), 1U);
  // What control does with it.
  cluster.node(0).Send(service::RankLeft{job.id, 1, told[0]->posted, told[0]->iterations,
                                         "rank 1 (pid 1001) on node b left the job"});
  cluster.Advance(kMillisecond);
  ExpectFailed(stays, 1, Code::kPeerLost, {"rank 1", "pid 1001", "node b", "iteration 0"});
}

TEST(PlannedNodes, GoOnBesideOperationsWhicheverOfThemANodePostsFirst) {
  PlannedFleet fleet(Ranks{{0}, {1}});
  fleet.AdoptAll(PlanOf(kBlocks), 1);
  const ipc::Record other = OnSegment(Collective::kAllReduce, DType::kFloat32, 1200, 16384);
  fleet.clients[0]->Post(other);
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
    PostGradient(*fleet.clients[0], *fleet.layout, tensor);
    PostGradient(*fleet.clients[1], *fleet.layout, tensor);
  }
  fleet.cluster.Advance(kMillisecond);
  fleet.clients[1]->Post(other);
  fleet.cluster.Advance(kSecond);
  for (const ClientEnd* client : fleet.clients) {
    for (std::uint64_t record = 1; record <= 4; ++record) ExpectOk(*client, record);
  }
  fleet.ExpectSums(1);
}

TEST(PlannedNodes, AStragglerDelaysEveryoneAndReordersNothing) {
  PlannedFleet fleet(Ranks{{0}, {1}, {2}});
  fleet.AdoptAll(PlanOf(kBlocks), 1);
  for (const std::uint32_t rank : {0U, 1U}) {
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      PostGradient(*fleet.clients[rank], *fleet.layout, tensor);
    }
  }
  // The straggler has what the second block needs first.
  PostGradient(*fleet.clients[2], *fleet.layout, 0);
  fleet.cluster.Advance(kSecond);
  ExpectOpen(*fleet.clients[0], 1);
  PostGradient(*fleet.clients[2], *fleet.layout, 1);
  PostGradient(*fleet.clients[2], *fleet.layout, 2);
  fleet.cluster.Advance(kSecond);
  for (const ClientEnd* client : fleet.clients) {
    for (std::uint64_t record = 1; record <= 3; ++record) ExpectOk(*client, record);
  }
  fleet.ExpectSums(1);
}

// What blocks cost before, and those that were under way, says nothing of the rails that are left.
TEST(PlannedNodes, TellTheLeaderWhatRailsHaveCostSinceOneWasLostAndSinceItIsBack) {
  PlannedFleet fleet(
      Ranks{{0}, {1}},
      {.exchange = {.name = "net0", .piece_size = 8192}, .rails_count = 2, .rails_stand_in = true});
  fleet.AdoptAll(PlanOf({{{0, 0, 400}, {1, 0, 200}, {2, 0, 300}}}), 1);
  fleet.Iterate(40, 10 * kMillisecond, 3 * kMillisecond);  // for which node a waits
  for (const std::size_t node : {0U, 1U}) ASSERT_EQ(fleet.Reported(node).size(), 4U);
  fleet.cluster.CutRail(0, 1, 1, transport::Silence::kSilent);
  fleet.Iterate(1, kSecond);
  fleet.Iterate(5);
  for (const std::size_t node : {0U, 1U}) {
    EXPECT_EQ(fleet.Reported(node).size(), 4U) << "they are not enough yet";
  }
  fleet.Iterate(4);
  for (const std::size_t node : {0U, 1U}) {
    const auto reported = fleet.Reported(node);
    ASSERT_EQ(reported.size(), 5U);
    EXPECT_FALSE(reported[3].rails_changed);
    EXPECT_TRUE(reported[4].rails_changed);
  }
  const auto of_a = fleet.Reported(0);
  for (const std::size_t rail : {1U, 2U}) {
    EXPECT_GT(of_a[3].costs[rail].Seconds(1800), 2e-3);
    EXPECT_LT(of_a[4].costs[rail].Seconds(1800), 1e-3);
  }
  fleet.cluster.MendRail(0, 1, 1);
  fleet.cluster.Advance(5 * kSecond);
  fleet.Iterate(10);
  for (const std::size_t node : {0U, 1U}) {
    const auto reported = fleet.Reported(node);
    ASSERT_EQ(reported.size(), 6U);
    EXPECT_TRUE(reported[5].rails_changed);
  }
}

// The leader would keep the plan of the first rail for as long as that goes on.
TEST(PlannedNodes, TellTheLeaderWhatRailsCostThoughOneComesAndGoes) {
  PlannedFleet fleet(
      Ranks{{0}, {1}},
      {.exchange = {.name = "net0", .piece_size = 8192}, .rails_count = 2, .rails_stand_in = true});
  fleet.AdoptAll(PlanOf({{{0, 0, 400}, {1, 0, 200}, {2, 0, 300}}}), 1);
  fleet.Iterate(40);
  const std::size_t before = fleet.Reported(0).size();
  for (int times = 0; times < 5; ++times) {
    fleet.cluster.CutRail(0, 1, 1, transport::Silence::kSilent);
    fleet.Iterate(1, kSecond);
    fleet.Iterate(2);
    fleet.cluster.MendRail(0, 1, 1);
    fleet.cluster.Advance(5 * kSecond);
    fleet.Iterate(2);
  }
  const auto reported = fleet.Reported(0);
  ASSERT_GT(reported.size(), before);
  EXPECT_TRUE(reported.back().rails_changed);
}

ipc::QueueRow RowOf(const HandDrivenNode& node, std::uint32_t iteration, std::uint64_t block) {
  for (const auto& slot : node.board().queue) {
    const ipc::QueueRow row = *ipc::ReadRow(slot);
    if (row.block == block && row.iteration == iteration) return row;
  }
  ADD_FAILURE() << "no row of block " << iteration << "/" << block;
  return {};
}

TEST(PlannedNodes, AJobRunsWhenItsNodesHaveMetHoweverManyRanksAreHere) {
  PlannedFleet fleet(Ranks{{0}, {1}});
  for (const std::size_t node : {0U, 1U}) {
    const ipc::JobRow row = *fleet.cluster.node(node).JobRow(fleet.job.id);
    EXPECT_EQ(row.state, static_cast<std::uint32_t>(ipc::JobState::kRunning));
    EXPECT_EQ(row.ranks_attached, 1U);
  }
}

// What the leader counts epochs by has other jobs in it; ranks that come back do not.
TEST(PlannedNodes, AJobHasRestartedAsOftenAsItsRanksCameBack) {
  HandDrivenNode node;
  node.Attach({.world_size = 2, .epoch = 3}, 0);
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->restarts, 2U);
  node.Attach({.world_size = 2, .epoch = 4}, 1);
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->restarts, 3U);
}

TEST(PlannedNodes, AJobsRowSaysWhoWaitsAndCountsWhoWasEvictedOverItsEpochs) {
  using service::WaitingApplicants;
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 4}, 0);
  ClientEnd& b = node.Attach({.world_size = 4}, 1);
  ClientEnd& evicted = node.Attach({.world_size = 4}, 2);
  ClientEnd& left = node.Attach({.world_size = 4}, 3);
  node.Settle();
  node.Close(left, true, "left the job");
  node.Settle();
  const auto say = [&node](SteeringKind kind, std::uint64_t value) {
    node.Send(service::SteerJob{JobId{1}, {.kind = kind, .value = value, .uid = 1000}});
    node.Settle();
  };
  say(SteeringKind::kApplicants, WaitingApplicants{.joiners = 1, .spares = 2}.Value());
  EXPECT_EQ(node.JobRow(JobId{1})->joiners_waiting, 1U);
  EXPECT_EQ(node.JobRow(JobId{1})->spares_waiting, 2U);
  EXPECT_EQ(node.JobRow(JobId{1})->evictions, 0U);
  say(SteeringKind::kEvict, 2);
  say(SteeringKind::kEvict, 2);
  say(SteeringKind::kEvict, 3);
  say(SteeringKind::kEvict, 4);
  EXPECT_EQ(node.JobRow(JobId{1})->evictions, 1U) << "one has left, and there is no fifth";
  say(SteeringKind::kApplicants, 0);
  EXPECT_EQ(node.JobRow(JobId{1})->spares_waiting, 0U);
  node.Close(evicted, false, "was evicted");
  node.Settle();
  for (ClientEnd* rank : {&a, &b}) node.Close(*rank, false, "closed its connection");
  node.Settle();
  node.Attach({.world_size = 1, .epoch = 2}, 0);
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->evictions, 1U);
}

TEST(PlannedNodes, AJobThatGoesOnWithFewerTellsWhatTheLossHasCost) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 2}, 0);
  ClientEnd& b = node.Attach({.world_size = 2}, 1);
  node.Settle();
  EXPECT_EQ(node.JobRow(JobId{1})->recoveries, 0U);
  node.Close(b, false, "exited or was killed");
  node.Settle();
  const TimeNs lost = node.now;
  node.Advance(300 * kMillisecond);
  node.Close(a, false, "closed its connection");
  node.Settle();
  node.Advance(200 * kMillisecond);
  ClientEnd& again = node.Attach({.world_size = 1, .epoch = 2}, 0);
  node.Settle();
  const ipc::JobRow under_way = *node.JobRow(JobId{1});
  EXPECT_EQ(under_way.world_before, 2U);
  EXPECT_EQ(under_way.recoveries, 0U) << "nothing has ended yet";
  again.PostApart(OnSegment(Collective::kAllReduce, DType::kFloat32, 16));
  node.Settle();
  const ipc::JobRow row = *node.JobRow(JobId{1});
  EXPECT_EQ(row.recoveries, 1U);
  EXPECT_GE(row.recovery_ns, 500 * kMillisecond);
  EXPECT_LE(row.recovery_ns, node.now - lost);
  EXPECT_EQ(row.recovered_ns, row.recovery_ns);
}

TEST(PlannedNodes, SayWhoHoldsThemUpAndNameNoRankThatHasDoneItsPart) {
  PlannedFleet fleet(Ranks{{0}, {1}});
  fleet.cluster.node(0).dispatch().ReportLate(5 * kSecond);  // it looks whom stages wait for
  fleet.AdoptAll(PlanOf(kBlocks), 1);
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
    PostGradient(*fleet.clients[0], *fleet.layout, tensor);
  }
  fleet.cluster.Advance(kSecond);
  const HandDrivenNode& node = fleet.cluster.node(0);
  const auto is = [](const ipc::QueueRow& row, ipc::WaitReason reason, std::uint64_t argument) {
    EXPECT_EQ(row.reason, static_cast<std::uint32_t>(reason));
    EXPECT_EQ(row.wait_argument, argument);
  };
  const ipc::QueueRow first = RowOf(node, 1, 1);
  EXPECT_EQ(first.reason, static_cast<std::uint32_t>(ipc::WaitReason::kPeer));
  is(RowOf(node, 1, 2), ipc::WaitReason::kInFlight, 1);
  is(RowOf(node, 2, 1), ipc::WaitReason::kIteration, 1);
  EXPECT_EQ(RowOf(node, 2, 1).ranks_missing, 0U);
  // On its own node it is the straggler that is named, and for how long goes on.
  const HandDrivenNode& slow = fleet.cluster.node(1);
  PostGradient(*fleet.clients[1], *fleet.layout, 0);
  fleet.cluster.Advance(kMillisecond);
  is(RowOf(slow, 1, 1), ipc::WaitReason::kRankNotReady, 1);
  const TimeNs since_ns = RowOf(slow, 1, 1).since_ns;
  PostGradient(*fleet.clients[1], *fleet.layout, 2);
  fleet.cluster.Advance(kMillisecond);
  is(RowOf(slow, 1, 1), ipc::WaitReason::kRankNotReady, 1);
  EXPECT_EQ(RowOf(slow, 1, 1).since_ns, since_ns);
}

TEST(PlannedNodes, WaitAgainWhenTheirStageInTheNodeHasEnded) {
  PlannedFleet fleet(Ranks{{0, 1}, {2}});
  fleet.AdoptAll(PlanOf(kBlocks), 1);
  for (std::uint32_t rank : {0U, 1U}) {
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      PostGradient(*fleet.clients[rank], *fleet.layout, tensor);
    }
  }
  fleet.cluster.Advance(kSecond);
  const HandDrivenNode& node = fleet.cluster.node(0);
  EXPECT_EQ(RowOf(node, 1, 1).state, static_cast<std::uint32_t>(ipc::StageState::kMoving));
  const ipc::QueueRow second = RowOf(node, 1, 2);
  EXPECT_EQ(second.state, static_cast<std::uint32_t>(ipc::StageState::kWaiting));
  EXPECT_EQ(second.reason, static_cast<std::uint32_t>(ipc::WaitReason::kInFlight));
  EXPECT_EQ(second.stage, static_cast<std::uint8_t>(service::BlockStage::kBetweenNodes));
}

TEST(PlannedNodes, ALaneIsNotBusyWhileNothingFlows) {
  PlannedFleet fleet(Ranks{{0}, {1}});
  fleet.AdoptAll(PlanOf(kBlocks), 1);
  const auto post_all = [&fleet](std::uint32_t rank) {
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      PostGradient(*fleet.clients[rank], *fleet.layout, tensor);
    }
  };
  post_all(0);
  fleet.cluster.Advance(10 * kSecond);
  post_all(1);
  fleet.cluster.Advance(kSecond);
  const HandDrivenNode& node = fleet.cluster.node(0);
  const ipc::LaneRow lane = node.LaneRow(1);
  EXPECT_EQ(lane.stages_ended, 2U);
  EXPECT_LT(lane.busy_ns, kSecond);
}

TEST(PlannedNodes, ARankThatLeftIsDiscardedOnceItsOperationsHaveEnded) {
  HandDrivenNode node;
  ClientEnd& leaves = node.Attach({.world_size = 2}, 0);
  ClientEnd& stays = node.Attach({.world_size = 2}, 1);
  node.Settle();
  leaves.PostApart(OnSegment(Collective::kAllReduce, DType::kFloat32, 16));
  node.Settle();
  node.Close(leaves, true, "left the job");
  node.Settle();
  EXPECT_TRUE(node.rpc().Of<service::SessionDiscarded>().empty());
  stays.PostApart(OnSegment(Collective::kAllReduce, DType::kFloat32, 16));
  node.Settle();
  const auto discarded = node.rpc().Of<service::SessionDiscarded>();
  ASSERT_EQ(discarded.size(), 1U);
  EXPECT_EQ(discarded[0]->session, leaves.id());
}

TEST(PlannedNodes, WhatALossHasCostIsNotForgottenForJobsOfAnotherUser) {
  HandDrivenNode node;
  const auto lose = [&node](const JobSpec& job) {
    std::vector<ClientEnd*> ranks;
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      ranks.push_back(&node.Attach(job, rank));
    }
    node.Settle();
    for (ClientEnd* const rank : ranks) node.Close(*rank, false, "exited or was killed");
    node.Settle();
  };
  JobSpec kept{.id = JobId{1}, .name = "kept", .world_size = 3, .uid = 1000};
  lose(kept);
  for (std::uint32_t i = 0; i < 2 * ipc::kJobRowsMax; ++i) {
    lose({.id = JobId{2 + i}, .name = "other" + std::to_string(i), .world_size = 1, .uid = 65534});
  }
  kept.epoch = 2;
  kept.world_size = 2;
  node.Attach(kept, 0);
  node.Settle();
  EXPECT_EQ(node.JobRow(kept.id)->world_before, 3U);
}

TEST(PlannedNodes, FailTogetherWhenARankIsLostInAnIteration) {
  PlannedFleet fleet(Ranks{{0}, {1}});
  fleet.AdoptAll(PlanOf(kBlocks), 1);
  PostGradient(*fleet.clients[0], *fleet.layout, 2);
  fleet.cluster.Advance(kMillisecond);
  fleet.cluster.node(1).Close(*fleet.clients[1], false, "exited or was killed");
  fleet.cluster.Advance(kMillisecond);
  const auto broken = fleet.cluster.node(1).peers().Of<service::JobFailed>();
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_TEXT(broken[0]->cause, "iteration 0");
  fleet.cluster.node(0).Send(service::JobFailed{fleet.job.id, broken[0]->code, broken[0]->cause});
  fleet.cluster.Advance(kMillisecond);
  ExpectFailed(*fleet.clients[0], 1, Code::kPeerLost, {"gradient 2", "iteration 1"});
}

}  // namespace
}  // namespace headrace::support
