// GPUs' memory on its way to other nodes, by way of pinned host memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/gpu_world.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using Ranks = std::vector<std::vector<std::uint32_t>>;

constexpr std::uint64_t kCount = 1200;  // several blocks of 1024 bytes

// The same operations on nodes of GPUs and on nodes without: what ends where must be the same.
class GpuNodes : public GpuTest, public ::testing::WithParamInterface<Ranks> {
 protected:
  struct World {
    World(const Ranks& ranks, const transport::Gpus* gpus)
        : cluster({.nodes_count = static_cast<std::uint32_t>(ranks.size()), .gpus = gpus}) {
      for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
      clients.resize(job.world_size);
      for (std::size_t node = 0; node < ranks.size(); ++node) {
        for (const std::uint32_t rank : ranks[node]) {
          clients[rank] = gpus == nullptr ? &cluster.node(node).Attach(job, rank)
                                          : &cluster.node(node).AttachOnGpu(
                                                job, rank, static_cast<int>(rank % 2));
          Fill(*clients[rank], static_cast<float>(100 * rank));
        }
      }
    }
    void Form(const Ranks& ranks) {
      cluster.Form(job, ranks);
      cluster.Advance(kMillisecond);
    }
    void PostAll(const ipc::Record& record) {
      for (ClientEnd* client : clients) client->Post(record);
    }

    JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
    HandDrivenCluster cluster;
    std::vector<ClientEnd*> clients;  // by rank
  };

  ~GpuNodes() override { world_.reset(); }
  World& OnGpus(const Ranks& ranks) {
    world_ = std::make_unique<World>(ranks, gpus_.get());
    return *world_;
  }

  std::unique_ptr<World> world_;
};

TEST_P(GpuNodes, EndWithTheBytesThatHostMemoryEndsWith) {
  World& gpus = OnGpus(GetParam());
  World hosts(GetParam(), nullptr);
  for (World* world : {&gpus, &hosts}) {
    world->Form(GetParam());
    std::uint64_t posted = 0;
    for (const Collective kind : {Collective::kAllReduce, Collective::kReduceScatter,
                                  Collective::kAllGather, Collective::kBroadcast}) {
      for (std::uint32_t root = 0; root < world->job.world_size; ++root) {
        if (root > 0 && kind != Collective::kBroadcast) continue;
        ipc::Record record = OnSegment(kind, DType::kFloat32, kCount, 4096);
        record.root = root;
        world->PostAll(record);
        world->cluster.Advance(100 * kMillisecond);  // all of them are in the same memory
        ++posted;
      }
    }
    ipc::Record average = OnSegment(Collective::kAllReduce, DType::kFloat32, 7);
    average.reduction = static_cast<std::uint8_t>(Reduction::kAverage);
    world->PostAll(average);
    world->PostAll(Barrier());
    world->PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, 0));
    world->cluster.Advance(kSecond);
    for (const ClientEnd* client : world->clients) {
      for (std::uint64_t i = 1; i <= posted + 3; ++i) ExpectOk(*client, i);
    }
  }
  for (std::size_t rank = 0; rank < gpus.clients.size(); ++rank) {
    ASSERT_EQ(std::memcmp(gpus.clients[rank]->Memory().data(), hosts.clients[rank]->Memory().data(),
                          65536),
              0)
        << "rank " << rank;
  }
}

TEST_P(GpuNodes, MoveGradientsInRunsThroughOnePieceOfHostMemory) {
  const auto layout = PackedLayout({400, 200, 300});
  const Blocks blocks = {{{2, 100, 200}, {0, 0, 50}}, {{0, 50, 350}, {1, 0, 200}, {2, 0, 100}}};
  World& gpus = OnGpus(GetParam());
  for (std::size_t node = 0; node < GetParam().size(); ++node) {
    for (const std::uint32_t rank : GetParam()[node]) {
      HandIn(gpus.cluster.node(node), *gpus.clients[rank], layout);
    }
  }
  gpus.Form(GetParam());
  for (std::size_t node = 0; node < GetParam().size(); ++node) {
    Adopt(gpus.cluster.node(node), gpus.job.id, PlanOf(blocks));
  }
  float times = 1;
  const auto world = static_cast<float>(gpus.job.world_size);
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (ClientEnd* client : gpus.clients) {
      for (std::uint32_t tensor = 0; tensor < 3; ++tensor) PostGradient(*client, *layout, tensor);
    }
    gpus.cluster.Advance(kSecond);
    for (const ClientEnd* client : gpus.clients) {
      for (std::size_t i = 0; i < 900; ++i) {
        ASSERT_EQ(client->Elements<float>()[i],
                  times * (100 * world * (world - 1) / 2 + world * static_cast<float>(i)))
            << "rank " << client->rank() << " element " << i;
      }
    }
    times *= world;
  }
}

INSTANTIATE_TEST_SUITE_P(Spreads, GpuNodes,
                         ::testing::Values(Ranks{{0}, {1}}, Ranks{{0, 1}, {2}},
                                           Ranks{{0, 3}, {1, 2, 4}}, Ranks{{0}, {1}, {2}}),
                         [](const auto& spread) {
                           std::string name;
                           for (const auto& node : spread.param) {
                             name += std::to_string(node.size()) + "On";
                           }
                           return name + "Nodes" + std::to_string(spread.param.size());
                         });

using GpuScratch = GpuNodes;

TEST_F(GpuScratch, IsSaidToPeopleAndGivenBackWithTheJob) {
  World& gpus = OnGpus({{0}, {1}});
  gpus.Form({{0}, {1}});
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kCount));
  gpus.cluster.Advance(kSecond);
  EXPECT_THAT(gpus.cluster.node(0).watch_tap().events,
              Contains(HasSubstr("GPU memory reaches other nodes through pinned host memory")));
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 2U) << "one on each node";
  for (std::size_t node = 0; node < 2; ++node) {
    gpus.cluster.node(node).Close(*gpus.clients[node], true, "left");
  }
  gpus.cluster.Advance(kMillisecond);
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 0U);
}

TEST_F(GpuScratch, ThatCannotBePinnedEndsTheJobByName) {
  doubled_.fail("cuMemHostRegister", 1, transport::CuResult::kOutOfMemory);
  World& gpus = OnGpus({{0}, {1}});
  gpus.Form({{0}, {1}});
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kCount));
  gpus.cluster.Advance(10 * kMillisecond);
  std::size_t failed = 0;
  for (const ClientEnd* client : gpus.clients) {
    if (!client->HasEnded(1)) continue;
    ++failed;
    ExpectFailed(*client, 1, Code::kExhausted, {"through the host's", "pin", "OUT_OF_MEMORY"});
  }
  EXPECT_EQ(failed, 1U) << "the other node hears of it from control";
}

}  // namespace
}  // namespace headrace::support
