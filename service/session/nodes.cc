#include "service/session/nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "service/session/session.h"
#include "transport/probe/line_fit.h"

namespace headrace::service {
namespace {

// Longer than any transfer of one block, and far from what overflows a count of nanoseconds.
constexpr double kCostSecondsMax = 1e6;

Error Wrong(std::string text) { return Error(Code::kCorrupt, std::move(text)); }

Status CheckCounts(const JobNodes& nodes, std::uint32_t world_size) {
  if (world_size == 0 || world_size > transport::kMembersMax) {
    return Wrong(fmt::format("a world of {} ranks", world_size));
  }
  if (nodes.nodes.empty() || nodes.nodes.size() > transport::kNodesMax) {
    return Wrong(
        fmt::format("{} nodes, 1 to {} are possible", nodes.nodes.size(), transport::kNodesMax));
  }
  if (nodes.servers_count >= nodes.nodes.size()) {
    return Wrong(fmt::format("{} servers among {} nodes", nodes.servers_count, nodes.nodes.size()));
  }
  if (nodes.self >= nodes.nodes.size()) {
    return Wrong(fmt::format("this node at place {} of {}", nodes.self, nodes.nodes.size()));
  }
  if (nodes.epoch == 0 || nodes.epoch >= kEpochMax || nodes.plan_version == 0) {
    return Wrong(fmt::format("epoch {} with plan {}", nodes.epoch, nodes.plan_version));
  }
  if (nodes.block_bytes < kBlockBytesMin || nodes.block_bytes > kBlockBytesMax) {
    return Wrong(fmt::format("blocks of {} bytes, {} to {} are possible", nodes.block_bytes,
                             kBlockBytesMin, kBlockBytesMax));
  }
  return {};
}

Status CheckNames(const JobNodes& nodes) {
  std::set<std::string_view> names;
  for (const JobNode& node : nodes.nodes) {
    if (node.name.empty()) return Wrong("a node without a name");
    if (!names.insert(node.name).second) return Wrong("two nodes called " + node.name);
  }
  return {};
}

// Each rank once, each node's growing, nodes by their lowest, servers with none and last.
Status CheckSeats(const JobNodes& nodes, std::uint32_t world_size) {
  std::map<std::uint32_t, const JobNode*> nodes_of_ranks;
  for (std::size_t place = 0; place < nodes.nodes.size(); ++place) {
    const JobNode& node = nodes.nodes[place];
    const bool server = place >= nodes.data_nodes_count();
    if (server != node.ranks.empty()) {
      return Wrong(fmt::format("{} {} ranks on node {}", server ? "server with" : "no",
                               node.ranks.size(), node.name));
    }
    if (!std::is_sorted(node.ranks.begin(), node.ranks.end())) {
      return Wrong(fmt::format("ranks of node {} out of order", node.name));
    }
    if (place > 0 && !server && node.ranks.front() < nodes.nodes[place - 1].ranks.front()) {
      return Wrong(fmt::format("node {} before node {}, which has the lower rank",
                               nodes.nodes[place - 1].name, node.name));
    }
    for (const std::uint32_t rank : node.ranks) {
      if (rank >= world_size) {
        return Wrong(fmt::format("rank {} of {} on node {}", rank, world_size, node.name));
      }
      const auto [entry, is_new] = nodes_of_ranks.emplace(rank, &node);
      if (is_new) continue;
      return Wrong(fmt::format("rank {} on node {} and again on node {}", rank, entry->second->name,
                               node.name));
    }
  }
  if (nodes_of_ranks.size() == world_size) return {};
  return Wrong(fmt::format("{} ranks of {}", nodes_of_ranks.size(), world_size));
}

}  // namespace

bool IsCost(const transport::CostLine& line) {
  const auto is_time = [](double seconds) {
    return std::isfinite(seconds) && seconds >= 0 && seconds <= kCostSecondsMax;
  };
  return is_time(line.startup_s) && is_time(line.s_per_byte);
}

Status CheckNodes(const JobNodes& nodes, std::uint32_t world_size,
                  std::span<const std::uint32_t> local) {
  if (Status status = CheckCounts(nodes, world_size); !status) return status;
  if (Status status = CheckNames(nodes); !status) return status;
  if (Status status = CheckSeats(nodes, world_size); !status) return status;
  const JobNode& self = nodes.nodes[nodes.self];
  if (!std::ranges::equal(self.ranks, local)) {
    return Wrong(fmt::format("ranks {} on this node ({}), which has {}",
                             fmt::join(self.ranks, ", "), self.name, fmt::join(local, ", ")));
  }
  for (const transport::CostLine& cost : nodes.costs) {
    // A byte that costs next to nothing would be more of them a second than a number holds.
    if (IsCost(cost) && cost.s_per_byte >= transport::kSecondsPerByteMin) continue;
    return Wrong(
        fmt::format("a lane that costs {} s and {} s a byte", cost.startup_s, cost.s_per_byte));
  }
  if (!nodes.costs.empty() && nodes.nccl_lanes > nodes.costs.size()) {
    return Wrong(fmt::format("{} NCCL lanes among {}", nodes.nccl_lanes, nodes.costs.size()));
  }
  return {};
}

std::uint32_t NodeOf(const JobNodes& nodes, std::uint32_t rank) {
  for (std::uint32_t node = 0; node < nodes.nodes.size(); ++node) {
    if (std::ranges::binary_search(nodes.nodes[node].ranks, rank)) return node;
  }
  HR_CHECK(false, rank);
  return 0;
}

}  // namespace headrace::service
