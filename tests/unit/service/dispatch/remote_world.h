// Several services driven by hand over a simulated network, whose ranks send to each other.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "service/session/send_notices.h"
#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {

// Ranks on several nodes, and what the nodes said to each other.
struct RemoteWorld {
  using Ranks = std::vector<std::vector<std::uint32_t>>;
  // Elements, in several blocks of 1 KiB, and too many to travel with an announcement.
  static constexpr std::uint64_t kLong = 17'000;
  static_assert(kLong * sizeof(float) > service::kSendDataMax);
  static constexpr std::size_t kSegmentBytes = std::size_t{1} << 18;

  explicit RemoteWorld(Ranks ranks_of_nodes = {{0, 1}, {2, 3}}, ClusterSpec spec = {},
                       bool form = true)
      : ranks(std::move(ranks_of_nodes)), cluster(With(spec, ranks.size())) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank, kSegmentBytes);
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
  // Lets everything happen, and reads what the nodes sent each other.
  void Advance(TimeNs time_ns = 10 * kMillisecond) {
    cluster.Advance(time_ns);
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const transport::Notice& sent : std::exchange(cluster.observed(node).sent, {})) {
        const auto notices = service::DecodeNotices(sent.bytes);
        ASSERT_TRUE(notices.ok());
        told.insert(told.end(), notices->begin(), notices->end());
      }
    }
  }
  // No notice arrives from now on.
  void Lose() {
    for (std::size_t node = 0; node < ranks.size(); ++node) cluster.observed(node).lose = true;
  }
  std::vector<service::SendNoticeKind> Told() {
    std::vector<service::SendNoticeKind> kinds;
    for (const service::SendNotice& each : told) kinds.push_back(each.kind);
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
  std::vector<service::SendNotice> told;
};

}  // namespace headrace::support
