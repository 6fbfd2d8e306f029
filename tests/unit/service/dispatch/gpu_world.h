// Hand-driven nodes with GPUs that the driver's double plays.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/support/hand_driven_node.h"
#include "tests/unit/service/dispatch/expect.h"
#include "transport/memory/gpus.h"

namespace headrace::support {

// Fails when something is left behind. What is built on the GPUs belongs into members of the test.
class GpuTest : public ::testing::Test {
 protected:
  GpuTest() {
    HR_CHECK(doubled_.restart() == 1, "a test before this one left something behind");
    gpus_ = transport::Gpus::Open(cuda_double::LibraryPath()).value();
  }
  ~GpuTest() override {
    EXPECT_EQ(gpus_->driver().releases_failed(), 0U);
    gpus_.reset();
    const auto counts = cuda_double::CountsOf(doubled_);
    EXPECT_EQ(counts, std::vector<std::uint64_t>(counts.size(), 0)) << "something was left behind";
  }

  const cuda_double::Doubled doubled_ = cuda_double::LoadDouble();
  std::unique_ptr<transport::Gpus> gpus_;
};

using Ranks = std::vector<std::vector<std::uint32_t>>;  // by node

struct Spread {
  Ranks ranks;
  std::uint32_t nccl_lanes = 0;
};

inline std::string NameOfSpread(const ::testing::TestParamInfo<Spread>& spread) {
  std::string name;
  for (const auto& node : spread.param.ranks) name += std::to_string(node.size()) + "On";
  return name + "Nodes" + std::to_string(spread.param.ranks.size()) + "Lanes" +
         std::to_string(spread.param.nccl_lanes);
}

struct NodesOptions {
  const transport::Gpus* gpus = nullptr;  // null: memory is the host's
  std::uint32_t nccl_lanes = 0;
  std::size_t segment_size = 65536;
  std::uint32_t rails = 1;
  std::uint32_t servers = 0;
  std::function<std::shared_ptr<transport::DeviceCodec>(std::size_t node)> device_codec{};
};

// A job over nodes that all have GPUs, or none, each rank with a segment of numbers.
struct NodesOfGpus {
  explicit NodesOfGpus(const Ranks& ranks, const NodesOptions& options = {})
      : cluster({.nodes_count = static_cast<std::uint32_t>(ranks.size()) + options.servers,
                 .gpus = options.gpus,
                 .rails_count = std::max(options.rails, options.nccl_lanes),
                 .nccl_lanes = options.nccl_lanes,
                 .servers_count = options.servers,
                 .device_codec = options.device_codec}) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    if (ranks.size() == 1) job.rendezvous.clear();
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        HandDrivenNode& at = cluster.node(node);
        clients[rank] =
            options.gpus == nullptr
                ? &at.Attach(job, rank, options.segment_size)
                : &at.AttachOnGpu(job, rank, static_cast<int>(rank % 2), options.segment_size);
        Fill(*clients[rank], static_cast<float>(100 * rank));
      }
    }
  }
  void Form(const Ranks& ranks, std::uint64_t block_bytes = 1024) {
    cluster.Form(job, ranks, block_bytes);
    cluster.Advance(kMillisecond);
  }
  void PostAll(const ipc::Record& record) {
    for (ClientEnd* client : clients) client->Post(record);
  }

  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;  // by rank
};

inline ipc::Record Awaiting(ipc::Record record) {
  record.flags |= ipc::kRecordAwaitsWord;
  return record;
}

// What the rank's GPU does when it has come so far.
inline void WriteReadyWord(const ClientEnd& client, std::uint64_t record) {
  client.layout().ready[record % ipc::kOperationsMax].store(record, std::memory_order_release);
}

}  // namespace headrace::support
