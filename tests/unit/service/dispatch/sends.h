// A job whose ranks have something for each other, on one node or on several: their memory, their
// tables, and what has come of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/hand_driven_cluster.h"
#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {

using RanksOfNodes = std::vector<std::vector<std::uint32_t>>;
// Elements that the first rank has for the second.
using Counts = std::function<std::uint64_t(std::uint32_t, std::uint32_t)>;

// In the memory of every rank, in elements of float32: what it sends, what it receives, the table.
inline constexpr std::uint64_t kReceived = 6000;
inline constexpr std::uint64_t kTableAt = 15000;
inline constexpr std::uint64_t kCount = 12000;  // of the record
inline constexpr float kUntouched = -1;

struct Sends {
  explicit Sends(RanksOfNodes ranks_of_nodes, ClusterSpec spec = {})
      : ranks(std::move(ranks_of_nodes)), cluster(With(spec, ranks.size())) {
    for (const auto& node : ranks) job.world_size += static_cast<std::uint32_t>(node.size());
    clients.resize(job.world_size);
    if (ranks.size() == 1) job.rendezvous.clear();
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      for (const std::uint32_t rank : ranks[node]) {
        clients[rank] = &cluster.node(node).Attach(job, rank);
      }
    }
    if (ranks.size() > 1) cluster.Form(job, ranks);
    cluster.Advance(kMillisecond);
  }
  static ClusterSpec With(ClusterSpec spec, std::size_t nodes_count) {
    spec.nodes_count = static_cast<std::uint32_t>(nodes_count);
    return spec;
  }
  std::uint32_t world() const { return job.world_size; }

  static float Value(std::uint32_t source, std::uint32_t target, std::uint64_t i) {
    return static_cast<float>(10000 * source + 1000 * target) + static_cast<float>(i);
  }
  static ipc::PartRow* TableOf(const ClientEnd& client) {
    return reinterpret_cast<ipc::PartRow*>(client.Elements<float>().data() + kTableAt);
  }

  // Fills the rank's memory and table, with parts one behind the other, and makes the record.
  ipc::Record Fill(std::uint32_t rank, Collective kind, std::uint32_t root, const Counts& counts) {
    const std::span<float> memory = clients[rank]->Elements<float>();
    std::ranges::fill(memory.first(kTableAt), kUntouched);
    ipc::PartRow* const table = TableOf(*clients[rank]);
    std::uint64_t sent = 0;
    std::uint64_t received = kReceived;
    for (std::uint32_t other = 0; other < world(); ++other) {
      table[other] = {};
      const auto is_of = [&](std::uint32_t source, std::uint32_t target) {
        if (source == target) return false;
        return kind == kGather ? target == root : kind != kScatter || source == root;
      };
      if (is_of(rank, other)) {
        table[other].sent_offset = sent;
        table[other].sent_count = counts(rank, other);
        for (std::uint64_t i = 0; i < counts(rank, other); ++i) {
          memory[sent++] = Value(rank, other, i);
        }
      }
      if (is_of(other, rank)) {
        table[other].received_offset = received;
        table[other].received_count = counts(other, rank);
        received += counts(other, rank);
      }
    }
    ipc::Record record = OnSegment(kind, DType::kFloat32, kCount);
    record.flags = ipc::kRecordHasParts;
    record.root = root;
    record.parts = 0;
    record.tag = kTableAt * sizeof(float);
    return record;
  }
  void PostAll(Collective kind, std::uint32_t root, const Counts& counts) {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      clients[rank]->Post(Fill(rank, kind, root, counts));
    }
  }
  // What each rank has got, and that nothing else was written.
  void ExpectDelivered() const {
    for (std::uint32_t rank = 0; rank < world(); ++rank) {
      ExpectOk(*clients[rank], clients[rank]->posted());
      const std::span<float> memory = clients[rank]->Elements<float>();
      const ipc::PartRow* const table = TableOf(*clients[rank]);
      std::uint64_t at = kReceived;
      for (std::uint32_t source = 0; source < world(); ++source) {
        for (std::uint64_t i = 0; i < table[source].received_count; ++i) {
          ASSERT_EQ(memory[at++], Value(source, rank, i)) << "rank " << rank << " of " << source;
        }
      }
      for (; at < kTableAt; ++at) ASSERT_EQ(memory[at], kUntouched) << "rank " << rank;
    }
  }
  std::vector<const service::JobFailed*> Broken(std::size_t node) {
    return cluster.node(node).peers().Of<service::JobFailed>();
  }

  RanksOfNodes ranks;
  JobSpec job{.world_size = 0, .rendezvous = "a:7733"};
  HandDrivenCluster cluster;
  std::vector<ClientEnd*> clients;  // by rank
};

inline const std::vector<RanksOfNodes> kPlaces = {{{0}},
                                                  {{0, 1}},
                                                  {{0, 1, 2, 3}},
                                                  {{0}, {1}},
                                                  {{0, 3}, {1, 2}},
                                                  {{0}, {1}, {2}},
                                                  {{0, 1, 2}, {3}, {4, 5}}};

}  // namespace headrace::support
