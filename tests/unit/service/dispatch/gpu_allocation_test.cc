// What dispatch allocates for GPUs' memory on its way to other nodes once scratch is there:
// nothing. A program of its own, because it counts every operator new.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/support/counted_new.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/gpu_world.h"

namespace headrace::support {
namespace {

// By how many lanes GPUs' memory goes; 0: through the host's.
class GpuAllocation : public GpuTest, public ::testing::WithParamInterface<std::uint32_t> {
 protected:
  ~GpuAllocation() override { cluster_.reset(); }

  void Open() {
    ClusterSpec spec;
    spec.gpus = gpus_.get();
    spec.rails_count = std::max(1U, GetParam());
    spec.nccl_lanes = GetParam();
    cluster_ = std::make_unique<HandDrivenCluster>(spec);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      HandDrivenNode& node = cluster_->node(rank / 2);
      ranks_.push_back(&node.AttachOnGpu(job_, rank, static_cast<int>(rank % 2), 1 << 20));
    }
    cluster_->Form(job_, {{0, 1}, {2, 3}}, 256 << 10);
    cluster_->Advance(kMillisecond);
  }

  // Everything moves until nothing does; how often the turns of dispatch allocated. What lanes of
  // the tests do for it is none of the service's.
  std::uint64_t Work() {
    const std::uint64_t before = allocations;
    const TimeNs end = cluster_->now() + 20 * kMillisecond;
    while (cluster_->now() < end) {
      bool worked = false;
      for (std::size_t i = 0; i < cluster_->nodes_count(); ++i) {
        HandDrivenNode& node = cluster_->node(i);
        counting = true;
        worked |= node.TurnDispatch();
        counting = false;
        worked |= node.TurnGpuLane();
        worked |= node.TurnNetworkLanes();
        node.TurnWatch();
      }
      if (worked) continue;
      const TimeNs next = std::min(cluster_->NextDue(), end);
      cluster_->network().AdvanceTo(std::max(next, cluster_->now() + 1));
      for (std::size_t i = 0; i < cluster_->nodes_count(); ++i) {
        cluster_->node(i).now = cluster_->now();
      }
    }
    return allocations - before;
  }

  std::uint64_t Post(std::uint64_t count) {
    for (ClientEnd* rank : ranks_) {
      rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, count));
    }
    return Work();
  }

  JobSpec job_{.world_size = 4, .rendezvous = "a:7733"};
  std::unique_ptr<HandDrivenCluster> cluster_;
  std::vector<ClientEnd*> ranks_;
};

TEST_P(GpuAllocation, HappensNowhereOnTheWayOfOperationsBetweenNodes) {
  Open();
  EXPECT_GT(Post(100'000), 0U) << "scratch is asked for";
  for (std::uint64_t i = 0; i < 10; ++i) Post(100'000 - i);
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < 40; ++i) count += Post(100'000 - 997 * i);
  EXPECT_EQ(count, 0U);
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, rank->posted());
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuAllocation, ::testing::Values(0U, 1U, 2U),
                         [](const auto& lanes) { return "Lanes" + std::to_string(lanes.param); });

}  // namespace
}  // namespace headrace::support
