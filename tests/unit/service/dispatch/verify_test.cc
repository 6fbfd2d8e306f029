// What the ranks have got is compared where `verify` asks for it: among the ranks of a node here,
// and told to peers for the job's leader to compare among nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using service::BlockHashed;
using Ranks = std::vector<std::vector<std::uint32_t>>;

constexpr std::uint64_t kFiveBlocks = 1200;  // elements: five blocks of 1024 bytes between nodes

// A node whose stages take a millisecond each, so that a test can reach between them.
struct VerifiedPair {
  explicit VerifiedPair(std::uint32_t verify) : node(Loopback({.startup_ns = kMillisecond})) {
    node.dispatch().Verify(verify);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.push_back(&node.Attach({}, rank));
      Fill(*ranks.back(), static_cast<float>(rank));
    }
  }
  void Post(Collective kind = Collective::kAllReduce) {
    for (ClientEnd* rank : ranks) rank->Post(OnSegment(kind, DType::kFloat32, kFiveBlocks));
    node.Settle();
  }

  HandDrivenNode node;
  std::vector<ClientEnd*> ranks;
};

TEST(Verify, NamesTheRankThatHasSomethingElseThanAnother) {
  VerifiedPair pair(1);
  pair.Post();
  pair.node.Advance(kMillisecond);  // it is summed, and about to be looked at
  ExpectOpen(*pair.ranks[0], 1);
  pair.ranks[1]->Elements<float>()[700] += 1;
  pair.node.Advance(kMillisecond);
  for (const ClientEnd* rank : pair.ranks) {
    ExpectFailed(*rank, 1, Code::kCorrupt, {"rank 1", "block 1", "operation 1", "rank 0"});
  }
}

TEST(Verify, LooksAtEveryNthOperationAndLetsItBe) {
  VerifiedPair pair(3);
  for (std::uint64_t operation = 1; operation <= 7; ++operation) {
    pair.Post();
    const bool looks = operation % 3 == 0;
    pair.node.Advance(kMillisecond);
    if (looks) {
      ExpectOpen(*pair.ranks[0], operation);
      pair.node.Advance(kMillisecond);
    }
    for (const ClientEnd* rank : pair.ranks) ExpectOk(*rank, operation);
    EXPECT_EQ(pair.node.Counters().blocks_verified, operation / 3);
  }
  EXPECT_EQ(pair.ranks[0]->Elements<float>()[1], pair.ranks[1]->Elements<float>()[1]);
  EXPECT_EQ(pair.node.Counters().operations_failed, 0U);
}

TEST(Verify, LooksAtNothingThatRanksMayHaveDifferent) {
  VerifiedPair pair(1);
  for (const Collective kind : {Collective::kReduceScatter, Collective::kAllGather}) {
    pair.Post(kind);
    for (int stage = 0; stage < 2; ++stage) pair.node.Advance(kMillisecond);
  }
  for (const ClientEnd* rank : pair.ranks) {
    ExpectOk(*rank, 1);
    ExpectOk(*rank, 2);
  }
  EXPECT_EQ(pair.node.Counters().blocks_verified, 1U) << "the all_gather";
}

TEST(Verify, LooksAtNothingOfAJobOfOneRank) {
  HandDrivenNode node;
  node.dispatch().Verify(1);
  ClientEnd& rank = node.Attach({.world_size = 1}, 0);
  rank.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kFiveBlocks));
  node.Settle();
  ExpectOk(rank, 1);
  EXPECT_EQ(node.Counters().blocks_verified, 0U);
}

struct Fleet {
  explicit Fleet(Ranks ranks_of_nodes, std::uint32_t verify,
                 const transport::LoopbackOptions& loopback = {})
      : ranks(std::move(ranks_of_nodes)),
        cluster({.nodes_count = static_cast<std::uint32_t>(ranks.size()),
                 .make = Loopback(loopback),
                 .verify = verify}) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank);
        Fill(*clients[rank], static_cast<float>(100 * rank));
      }
    }
  }
  // In an order that is the same on all nodes, whatever the order in which blocks ended.
  std::vector<std::tuple<service::BlockName, std::uint64_t>> Told(std::size_t node) {
    std::vector<std::tuple<service::BlockName, std::uint64_t>> told;
    for (const BlockHashed* each : cluster.node(node).peers().Of<BlockHashed>()) {
      EXPECT_EQ(each->job, job.id);
      told.emplace_back(each->hash.name, each->hash.hash);
    }
    std::ranges::sort(told);
    return told;
  }

  Ranks ranks;
  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;  // by rank
};

TEST(Verify, TellsWhatTheRanksOfANodeHaveGotInEachBlock) {
  for (const Ranks& ranks : {Ranks{{0}, {1}}, Ranks{{0, 1}, {2}}, Ranks{{0}, {1}, {2}}}) {
    Fleet fleet(ranks, 2);
    fleet.cluster.Form(fleet.job, ranks);
    for (std::uint64_t operation = 1; operation <= 2; ++operation) {
      for (ClientEnd* client : fleet.clients) {
        client->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kFiveBlocks));
      }
      fleet.cluster.Advance(kSecond);
      for (const ClientEnd* client : fleet.clients) ExpectOk(*client, operation);
    }
    const auto told = fleet.Told(0);
    ASSERT_EQ(told.size(), 5U);
    for (std::uint32_t block = 0; block < 5; ++block) {
      EXPECT_EQ(std::get<0>(told[block]), (service::BlockName{false, 2, block}));
    }
    for (std::size_t node = 1; node < ranks.size(); ++node) EXPECT_EQ(fleet.Told(node), told);
  }
}

TEST(Verify, TellsOfBlocksOfThePlanByTheirIteration) {
  const Ranks ranks = {{0}, {1, 2}};
  Fleet fleet(ranks, 2);
  const auto layout = PackedLayout({400, 200, 300});
  for (std::size_t node = 0; node < 2; ++node) {
    for (const std::uint32_t rank : ranks[node]) {
      HandIn(fleet.cluster.node(node), *fleet.clients[rank], layout);
    }
  }
  fleet.cluster.Form(fleet.job, ranks);
  fleet.cluster.Advance(kMillisecond);
  // Blocks of several runs that do not begin with them.
  const auto plan = PlanOf({{{2, 100, 200}, {1, 0, 50}}, {{0, 0, 400}, {1, 50, 150}, {2, 0, 100}}});
  for (std::size_t node = 0; node < 2; ++node) {
    Adopt(fleet.cluster.node(node), fleet.job.id, plan, 1);
  }
  for (int iteration = 1; iteration <= 4; ++iteration) {
    for (ClientEnd* client : fleet.clients) {
      for (std::uint32_t tensor = 0; tensor < 3; ++tensor) PostGradient(*client, *layout, tensor);
    }
    fleet.cluster.Advance(kSecond);
  }
  const auto told = fleet.Told(0);
  ASSERT_EQ(told.size(), 4U);
  EXPECT_EQ(std::get<0>(told[0]), (service::BlockName{true, 2, 0}));
  EXPECT_EQ(std::get<0>(told[1]), (service::BlockName{true, 2, 1}));
  EXPECT_EQ(std::get<0>(told[2]), (service::BlockName{true, 4, 0}));
  EXPECT_EQ(fleet.Told(1), told);
  for (const ClientEnd* client : fleet.clients) ExpectOk(*client, 12);
}

TEST(Verify, TellsAnotherHashOfWhatWasChanged) {
  const Ranks ranks = {{0}, {1}};
  Fleet fleet(ranks, 1, {.startup_ns = 10 * kMillisecond});
  fleet.cluster.Form(fleet.job, ranks);
  fleet.cluster.Advance(kMillisecond);
  for (ClientEnd* client : fleet.clients) {
    client->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 100));
  }
  fleet.cluster.Advance(5 * kMillisecond);  // summed between the nodes; not looked at before 10 ms
  ExpectOpen(*fleet.clients[1], 1);
  EXPECT_EQ(fleet.clients[1]->Elements<float>()[3], 106);
  fleet.clients[1]->Elements<float>()[3] = 107;
  fleet.cluster.Advance(kSecond);
  ASSERT_EQ(fleet.Told(0).size(), 1U);
  ASSERT_EQ(fleet.Told(1).size(), 1U);
  EXPECT_EQ(std::get<0>(fleet.Told(0)[0]), std::get<0>(fleet.Told(1)[0]));
  EXPECT_NE(std::get<1>(fleet.Told(0)[0]), std::get<1>(fleet.Told(1)[0]));
  ExpectOk(*fleet.clients[0], 1);
}

TEST(Verify, GoesOnWherePeersHaveNoRoom) {
  const Ranks ranks = {{0}, {1}};
  Fleet fleet(ranks, 1);
  fleet.cluster.Form(fleet.job, ranks);
  fleet.cluster.Advance(kMillisecond);
  fleet.cluster.node(0).peers().full = true;
  for (ClientEnd* client : fleet.clients) {
    client->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, kFiveBlocks));
  }
  fleet.cluster.Advance(kSecond);
  for (const ClientEnd* client : fleet.clients) ExpectOk(*client, 1);
  EXPECT_TRUE(fleet.Told(0).empty());
  EXPECT_EQ(fleet.Told(1).size(), 5U);
}

}  // namespace
}  // namespace headrace::support
