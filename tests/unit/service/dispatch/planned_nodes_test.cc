// Gradients that move by a plan, on several nodes: the unchanged dispatch, queue, lanes and
// exchange of each, over a simulated network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using Ranks = std::vector<std::vector<std::uint32_t>>;

const Blocks kBlocks = {{{2, 100, 200}, {1, 0, 50}}, {{0, 0, 400}, {1, 50, 150}, {2, 0, 100}}};

struct Fleet {
  explicit Fleet(Ranks ranks_of_nodes)
      : ranks(std::move(ranks_of_nodes)),
        cluster({.nodes_count = static_cast<std::uint32_t>(ranks.size())}) {
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
    Fleet fleet(ranks);
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

TEST(PlannedNodes, GoOnBesideOperationsWhicheverOfThemANodePostsFirst) {
  Fleet fleet(Ranks{{0}, {1}});
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
  Fleet fleet(Ranks{{0}, {1}, {2}});
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

TEST(PlannedNodes, FailTogetherWhenARankIsLostInAnIteration) {
  Fleet fleet(Ranks{{0}, {1}});
  fleet.AdoptAll(PlanOf(kBlocks), 1);
  PostGradient(*fleet.clients[0], *fleet.layout, 2);
  fleet.cluster.Advance(kMillisecond);
  fleet.cluster.node(1).Close(*fleet.clients[1], false, "exited or was killed");
  fleet.cluster.Advance(kMillisecond);
  const auto broken = fleet.cluster.node(1).peers().Of<service::JobBroken>();
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_THAT(broken[0]->cause, ::testing::HasSubstr("exited or was killed after iteration 0"));
  fleet.cluster.node(0).Send(service::JobFailed{fleet.job.id, broken[0]->code, broken[0]->cause});
  fleet.cluster.Advance(kMillisecond);
  ExpectFailed(*fleet.clients[0], 1, Code::kPeerLost,
               {"exited or was killed", "gradient 2 [g2] of iteration 1 was open"});
}

}  // namespace
}  // namespace headrace::support
