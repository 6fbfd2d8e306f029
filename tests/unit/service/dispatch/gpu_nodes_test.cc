// GPUs' memory on its way to other nodes: by way of pinned host memory, or from scratch on the GPUs
// that have lanes to other nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/gpu_world.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::uint64_t kManyBlocks = 1200;  // several blocks of 1024 bytes

// The same operations on nodes of GPUs and on nodes without: what ends where must be the same.
class GpuNodes : public GpuTest, public ::testing::WithParamInterface<Spread> {
 protected:
  using World = NodesOfGpus;

  ~GpuNodes() override { world_.reset(); }
  void ExpectGradientsOf(const std::shared_ptr<const plan::Plan>& plan);
  World& OnGpus(const Ranks& ranks, std::uint32_t nccl_lanes = 0,
                std::size_t segment_size = 65536) {
    world_ = std::make_unique<World>(
        ranks,
        NodesOptions{.gpus = gpus_.get(), .nccl_lanes = nccl_lanes, .segment_size = segment_size});
    return *world_;
  }
  // What the lane inside a node was given, for one step of the blocks that go to other nodes.
  std::size_t CarriedFromNode(Collective kind) {
    return static_cast<std::size_t>(std::ranges::count(
        world_->cluster.node(0).gpu_transport().taken, kind, &transport::Transfer::kind));
  }

  std::unique_ptr<World> world_;
};

TEST_P(GpuNodes, EndWithTheBytesThatHostMemoryEndsWith) {
  const Ranks& ranks = GetParam().ranks;
  World& gpus = OnGpus(ranks, GetParam().nccl_lanes);
  World hosts(ranks);
  for (World* world : {&gpus, &hosts}) {
    world->Form(ranks);
    std::uint64_t posted = 0;
    for (const Collective kind : {Collective::kAllReduce, Collective::kReduceScatter,
                                  Collective::kAllGather, Collective::kBroadcast}) {
      for (std::uint32_t root = 0; root < world->job.world_size; ++root) {
        if (root > 0 && kind != Collective::kBroadcast) continue;
        ipc::Record record = OnSegment(kind, DType::kFloat32, kManyBlocks, 4096);
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

// By way of the host's memory what GPUs have is encoded like the host's; their own lanes carry it
// as it is.
TEST_P(GpuNodes, EncodeWhatCrossesThroughTheHost) {
  const Ranks& ranks = GetParam().ranks;
  const bool encodes = GetParam().nccl_lanes == 0;
  World& gpus = OnGpus(ranks, GetParam().nccl_lanes);
  World hosts(ranks);
  constexpr std::uint64_t kCount = 6000;
  const Codec codecs[] = {Codec::kBFloat16, Codec::kInt8Stochastic, Codec::kLossless};
  for (World* world : {&gpus, &hosts}) {
    world->Form(ranks, kCount * sizeof(float));
    for (const Codec codec : codecs) {
      ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, kCount, 4096);
      if (encodes || world == &gpus) record.tag = SteeringValue(codec);
      world->PostAll(record);
      world->cluster.Advance(100 * kMillisecond);
    }
    for (const ClientEnd* client : world->clients) {
      for (std::uint64_t i = 1; i <= std::size(codecs); ++i) ExpectOk(*client, i);
    }
  }
  for (std::size_t rank = 0; rank < gpus.clients.size(); ++rank) {
    ASSERT_EQ(std::memcmp(gpus.clients[rank]->Memory().data(), hosts.clients[rank]->Memory().data(),
                          65536),
              0)
        << "rank " << rank;
  }
  const auto& events = gpus.cluster.node(0).watch_tap().events;
  const auto says = [](const std::string& text) {
    return text.find("is to cross as bf16, and crosses as it is") != std::string::npos;
  };
  EXPECT_EQ(std::ranges::count_if(events, says), encodes ? 0 : 1);
  if (!encodes) return;
  World plain(ranks);
  plain.Form(ranks, kCount * sizeof(float));
  for (std::size_t i = 0; i < std::size(codecs); ++i) {
    plain.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kCount, 4096));
    plain.cluster.Advance(100 * kMillisecond);
  }
  EXPECT_NE(std::memcmp(gpus.clients[0]->Memory().data(), plain.clients[0]->Memory().data(), 65536),
            0)
      << "nothing was encoded";
}

const Blocks kBlocks = {{{2, 100, 200}, {0, 0, 50}}, {{0, 50, 350}, {1, 0, 200}, {2, 0, 100}}};

// Over three iterations, of a layout in which the blocks have several runs.
void GpuNodes::ExpectGradientsOf(const std::shared_ptr<const plan::Plan>& plan) {
  const auto layout = PackedLayout({400, 200, 300});
  const Ranks& ranks = GetParam().ranks;
  World& gpus = OnGpus(ranks, GetParam().nccl_lanes);
  for (std::size_t node = 0; node < ranks.size(); ++node) {
    for (const std::uint32_t rank : ranks[node]) {
      HandIn(gpus.cluster.node(node), *gpus.clients[rank], layout);
    }
  }
  gpus.Form(ranks);
  for (std::size_t node = 0; node < ranks.size(); ++node) {
    Adopt(gpus.cluster.node(node), gpus.job.id, plan);
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

TEST_P(GpuNodes, MoveGradientsInRunsThroughScratchInOnePiece) {
  ExpectGradientsOf(PlanOf(kBlocks));
}

// The residuals of gradients on GPUs are those that the host's gradients have: the same bits in
// each iteration, whatever runs the blocks are in.
TEST_P(GpuNodes, KeepWhatEncodingsLeaveOutOfGradientsLikeHosts) {
  if (GetParam().nccl_lanes > 0) GTEST_SKIP() << "NCCL lanes carry all as it is";
  constexpr std::uint32_t kCount = 6000;
  const auto layout = PackedLayout({kCount, 300, kCount});
  plan::Plan plan =
      *PlanOf({{{2, 1000, kCount - 1000}, {0, 0, kCount}}, {{1, 0, 300}, {2, 0, 1000}}});
  plan.codecs = {{Codec::kInt4, 0, 3}};
  const Ranks& ranks = GetParam().ranks;
  World& gpus = OnGpus(ranks, 0, std::size_t{1} << 17U);
  World hosts(ranks, {.segment_size = std::size_t{1} << 17U});
  std::vector<float> first;
  for (World* world : {&gpus, &hosts}) {
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        HandIn(world->cluster.node(node), *world->clients[rank], layout);
      }
    }
    world->Form(ranks, 1 << 16);
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      Adopt(world->cluster.node(node), world->job.id, std::make_shared<const plan::Plan>(plan));
    }
    for (std::uint64_t iteration = 1; iteration <= 5; ++iteration) {
      for (ClientEnd* client : world->clients) {
        for (std::uint32_t i = 0; i < 2 * kCount + 300; ++i) {
          client->Elements<float>()[i] = std::sin(static_cast<float>(i * (client->rank() + 3)));
        }
        for (std::uint32_t tensor = 0; tensor < 3; ++tensor) PostGradient(*client, *layout, tensor);
      }
      world->cluster.Advance(kSecond);
      for (const ClientEnd* client : world->clients) {
        for (std::uint64_t i = 0; i < 3; ++i) ExpectOk(*client, 3 * iteration - i);
      }
      if (iteration == 1) {
        const auto sums = world->clients[0]->Elements<float>();
        first.assign(sums.begin(), sums.begin() + 2 * kCount + 300);
      }
    }
  }
  const auto size = static_cast<std::size_t>(first.size()) * sizeof(float);
  for (std::size_t rank = 0; rank < gpus.clients.size(); ++rank) {
    ASSERT_EQ(std::memcmp(gpus.clients[rank]->Memory().data(), hosts.clients[rank]->Memory().data(),
                          size),
              0)
        << "rank " << rank;
  }
  EXPECT_NE(std::memcmp(gpus.clients[0]->Memory().data(), first.data(), size), 0)
      << "what was left out of the first iteration is in none of the others";
}

TEST_P(GpuNodes, EncodeGradientsThatCrossThroughTheHost) {
  if (GetParam().nccl_lanes > 0) GTEST_SKIP() << "NCCL lanes carry all as it is";
  constexpr std::uint32_t kCount = 8192;
  const auto layout = PackedLayout({kCount});
  plan::Plan plan = *PlanOf({{{0, 0, kCount}}});
  plan.codecs = {{Codec::kBFloat16, 0, 1}};
  const Ranks& ranks = GetParam().ranks;
  World& gpus = OnGpus(ranks);
  for (std::size_t node = 0; node < ranks.size(); ++node) {
    for (const std::uint32_t rank : ranks[node]) {
      HandIn(gpus.cluster.node(node), *gpus.clients[rank], layout);
    }
  }
  gpus.Form(ranks);
  for (std::size_t node = 0; node < ranks.size(); ++node) {
    Adopt(gpus.cluster.node(node), gpus.job.id, std::make_shared<const plan::Plan>(plan));
  }
  for (ClientEnd* client : gpus.clients) PostGradient(*client, *layout, 0);
  gpus.cluster.Advance(kSecond);
  const auto world = static_cast<float>(gpus.job.world_size);
  std::uint32_t rounded = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const float exact = 100 * world * (world - 1) / 2 + world * static_cast<float>(i);
    const float found = gpus.clients[0]->Elements<float>()[i];
    ASSERT_NEAR(found, exact, exact / 100) << i;
    if (found != exact) ++rounded;
    for (const ClientEnd* client : gpus.clients) ASSERT_EQ(client->Elements<float>()[i], found);
  }
  EXPECT_GT(rounded, kCount / 2) << "nothing was encoded";
}

TEST_P(GpuNodes, MoveGradientsByHalvesThatTravelApart) {
  if (GetParam().nccl_lanes > 0) GTEST_SKIP() << "NCCL lanes take whole all-reduces";
  ExpectGradientsOf(HalvesOf(kBlocks));
}

// A rank's own streams may come to their ends in any order; between nodes there is one.
TEST_P(GpuNodes, KeepTheOrderOfTheirNumbersWhoseGpuIsReadyFirst) {
  World& world = OnGpus(GetParam().ranks, GetParam().nccl_lanes);
  world.Form(GetParam().ranks);
  world.PostAll(Awaiting(OnSegment(Collective::kAllReduce, DType::kFloat32, kManyBlocks, 4096)));
  world.PostAll(Awaiting(Barrier()));
  for (const std::uint64_t offset : {0U, 32768U}) {
    world.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, 100, offset));
  }
  world.cluster.Advance(100 * kMillisecond);
  for (const ClientEnd* client : world.clients) WriteReadyWord(*client, 2);
  world.cluster.Advance(100 * kMillisecond);
  for (const ClientEnd* client : world.clients) {
    for (std::uint64_t record = 1; record <= 4; ++record) ExpectOpen(*client, record);
    WriteReadyWord(*client, 1);
  }
  world.cluster.Advance(kSecond);
  for (const ClientEnd* client : world.clients) {
    for (std::uint64_t record = 1; record <= 4; ++record) ExpectOk(*client, record);
  }
}

INSTANTIATE_TEST_SUITE_P(Spreads, GpuNodes,
                         ::testing::Values(Spread{{{0}, {1}}}, Spread{{{0, 1}, {2}}},
                                           Spread{{{0, 3}, {1, 2, 4}}}, Spread{{{0}, {1}, {2}}},
                                           Spread{{{0}, {1}}, 1}, Spread{{{0}, {1}}, 2},
                                           Spread{{{0, 1}, {2}}, 2}, Spread{{{0, 3}, {1, 2, 4}}, 2},
                                           Spread{{{0}, {1}, {2}}, 2}),
                         NameOfSpread);

using NcclLanes = GpuNodes;

TEST_F(NcclLanes, EachCarryTheirShareOfABlockFromMemoryOfTheirGpu) {
  constexpr std::uint64_t kLarge = 100'000;  // a block and a part of one
  World& gpus = OnGpus({{0, 1}, {2}}, 2, std::size_t{1} << 20);
  gpus.Form({{0, 1}, {2}}, 256 << 10);
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kLarge));
  gpus.cluster.Advance(kSecond);
  for (const ClientEnd* client : gpus.clients) {
    ExpectOk(*client, 1);
    for (std::size_t i = 0; i < kLarge; i += 997) {
      ASSERT_EQ(client->Elements<float>()[i], 300.0F + 3 * static_cast<float>(i)) << i;
    }
  }
  // Two shares of either block, and each lane has carried one of each.
  EXPECT_EQ(CarriedFromNode(Collective::kReduce), 4U);
  EXPECT_EQ(CarriedFromNode(Collective::kBroadcast), 4U);
  const auto first = gpus.cluster.exchange(0, 0).counters().bytes_sent;
  const auto second = gpus.cluster.exchange(0, 1).counters().bytes_sent;
  EXPECT_EQ(first + second, kLarge * 4);
  EXPECT_GE(first, kLarge);
  EXPECT_GE(second, kLarge);
}

TEST_F(NcclLanes, TakeScratchOnEachGpuWhichIsSaidOnceAndGivenBack) {
  World& gpus = OnGpus({{0}, {1}}, 2);
  gpus.Form({{0}, {1}});
  CudaDoubleCounts before{};
  doubled_.counts(&before);
  for (int i = 0; i < 4; ++i) {
    gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kManyBlocks));
    gpus.cluster.Advance(kSecond);
  }
  const auto& events = gpus.cluster.node(0).watch_tap().events;
  EXPECT_EQ(std::ranges::count_if(events,
                                  [](const std::string& text) {
                                    return text.find("GPUs 0 to 1") != std::string::npos;
                                  }),
            1);
  EXPECT_TEXTS(events);
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 0U);
  EXPECT_EQ(counts.mappings, before.mappings + 4) << "one on each GPU, for each node";
  for (std::size_t node = 0; node < 2; ++node) {
    gpus.cluster.node(node).Close(*gpus.clients[node], true, "left");
  }
  gpus.cluster.Advance(kMillisecond);
  doubled_.counts(&counts);
  EXPECT_LT(counts.mappings, before.mappings);
}

TEST_F(NcclLanes, PassThroughTheHostWhatAGpuHasNoMemoryForAndSayWhy) {
  World& gpus = OnGpus({{0}, {1}}, 2);
  gpus.Form({{0}, {1}});
  doubled_.fail("cuMemCreate", 1, transport::CuResult::kOutOfMemory);
  for (int i = 0; i < 4; ++i) {
    gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kManyBlocks));
    gpus.cluster.Advance(kSecond);
  }
  for (const ClientEnd* client : gpus.clients) {
    for (std::uint64_t i = 1; i <= 4; ++i) ExpectOk(*client, i);
    EXPECT_EQ(client->Elements<float>()[5], 8 * (100.0F + 2 * 5));
  }
  std::vector<std::string> events = gpus.cluster.node(0).watch_tap().events;
  std::ranges::copy(gpus.cluster.node(1).watch_tap().events, std::back_inserter(events));
  EXPECT_THAT(events, Contains(HasSubstr("OUT_OF_MEMORY")));
  EXPECT_TEXTS(events);
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 1U);
}

TEST_F(NcclLanes, PassThroughTheHostWhatNotAllGpusReach) {
  gpus_.reset();
  const cuda_double::Environment alone{{"PEERS", "none"}};
  HR_CHECK(doubled_.restart() == 1);
  gpus_ = transport::Gpus::Open(cuda_double::LibraryPath()).value();
  World& gpus = OnGpus({{0}, {1}}, 1);
  gpus.Form({{0}, {1}});
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, 10));
  gpus.cluster.Advance(kSecond);
  for (const ClientEnd* client : gpus.clients) ExpectOk(*client, 1);
  EXPECT_THAT(gpus.cluster.node(0).watch_tap().events,
              Contains(AllOf(HasSubstr("GPU 1"), HasSubstr("GPU 0"))));
  EXPECT_TEXTS(gpus.cluster.node(0).watch_tap().events);
}

using GpuScratch = GpuNodes;

TEST_F(GpuScratch, IsSaidToPeopleAndGivenBackWithTheJob) {
  World& gpus = OnGpus({{0}, {1}});
  gpus.Form({{0}, {1}});
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kManyBlocks));
  gpus.cluster.Advance(kSecond);
  EXPECT_TEXTS(gpus.cluster.node(0).watch_tap().events);
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

// Clients can fill watch's inbox.
TEST_F(GpuScratch, IsAskedForOnceWatchHasRoom) {
  World& gpus = OnGpus({{0}, {1}});
  gpus.Form({{0}, {1}});
  gpus.cluster.node(0).watch_tap().full = true;
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kManyBlocks));
  gpus.cluster.Advance(100 * kMillisecond);
  ExpectOpen(*gpus.clients[0], 1);
  gpus.cluster.node(0).watch_tap().full = false;
  gpus.cluster.Advance(kSecond);
  for (const ClientEnd* client : gpus.clients) ExpectOk(*client, 1);
}

// On one session, also where several classes of blocks need some, until the job is over.
TEST_F(GpuScratch, IsBookedOnItsJobsFirstSessionHere) {
  World& gpus = OnGpus({{0, 1}, {2}});
  gpus.Form({{0, 1}, {2}});
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kManyBlocks));
  gpus.PostAll(OnSegment(Collective::kBroadcast, DType::kFloat32, kManyBlocks, 32768));
  gpus.cluster.Advance(kSecond);
  for (const ClientEnd* client : gpus.clients) ExpectOk(*client, 2);
  HandDrivenNode& node = gpus.cluster.node(0);
  const auto booked = node.rpc().Of<service::BookScratch>();
  ASSERT_EQ(booked.size(), 2U);
  for (const service::BookScratch* each : booked) {
    EXPECT_EQ(each->session, gpus.clients[0]->id());
    EXPECT_EQ(each->bytes, 8U * 1024) << "eight blocks";
  }
  node.Close(*gpus.clients[0], true, "left");
  gpus.cluster.Advance(kMillisecond);
  EXPECT_TRUE(node.rpc().Of<service::SessionDiscarded>().empty()) << "the job goes on";
  node.Close(*gpus.clients[1], true, "left");
  gpus.cluster.Advance(kMillisecond);
  EXPECT_EQ(node.rpc().Of<service::SessionDiscarded>().size(), 2U);
}

TEST_F(GpuScratch, ThatItsUserMayNotHaveIsNotMadeAndEndsTheJobByName) {
  World& gpus = OnGpus({{0}, {1}});
  gpus.cluster.node(0).LimitScratch(8U * 1024 - 1);
  gpus.Form({{0}, {1}});
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kManyBlocks));
  gpus.cluster.Advance(10 * kMillisecond);
  ExpectFailed(*gpus.clients[0], 1, Code::kExhausted, {"take GPU memory to other nodes", "8192"});
  CudaDoubleCounts counts{};
  doubled_.counts(&counts);
  EXPECT_EQ(counts.host_registrations, 1U) << "of the other node";
}

TEST_F(GpuScratch, ThatCannotBePinnedEndsTheJobByName) {
  doubled_.fail("cuMemHostRegister", 1, transport::CuResult::kOutOfMemory);
  World& gpus = OnGpus({{0}, {1}});
  gpus.Form({{0}, {1}});
  gpus.PostAll(OnSegment(Collective::kAllReduce, DType::kFloat32, kManyBlocks));
  gpus.cluster.Advance(10 * kMillisecond);
  std::size_t failed = 0;
  for (const ClientEnd* client : gpus.clients) {
    if (!client->HasEnded(1)) continue;
    ++failed;
    ExpectFailed(*client, 1, Code::kExhausted, {"pin"});
  }
  EXPECT_EQ(failed, 1U) << "the other node hears of it from control";
}

}  // namespace
}  // namespace headrace::support
