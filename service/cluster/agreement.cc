#include "service/cluster/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "ipc/base/check.h"
#include "service/plan/canonical.h"

namespace headrace::service {
namespace {

// Addresses are opaque bytes: in hex they cannot be taken for a line of their own.
std::string Hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    fmt::format_to(std::back_inserter(text), "{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

}  // namespace

std::string CanonicalText(const Agreement& agreement) {
  std::string text = fmt::format(
      "job {}\nworld {}\nepoch {}\nkey {:016x}\nplan {}\nblock {}\nalgorithm {}\n", agreement.job,
      agreement.world_size, agreement.epoch, agreement.key, agreement.plan_version,
      agreement.block_bytes, static_cast<unsigned>(agreement.algorithm));
  for (const AgreedNode& node : agreement.nodes) {
    text += fmt::format("node {} ranks {}\n", node.name, fmt::join(node.ranks, " "));
    for (const std::string& address : node.addresses) text += fmt::format("at {}\n", Hex(address));
    if (!node.control.empty()) text += fmt::format("control {}\n", Hex(node.control));
  }
  text += fmt::format("servers {}\n", agreement.servers_count);
  for (const transport::CostLine& cost : agreement.costs) {
    text += fmt::format("cost {:016x} {:016x}\n", std::bit_cast<std::uint64_t>(cost.startup_s),
                        std::bit_cast<std::uint64_t>(cost.s_per_byte));
  }
  // The text is hashed, and services of several commits compare it.
  if (agreement.nccl_lanes != 0) text += fmt::format("gpu lanes {}\n", agreement.nccl_lanes);
  if (agreement.verify != 0) text += fmt::format("verify {}\n", agreement.verify);
  if (!agreement.leader.empty()) text += fmt::format("leader {}\n", agreement.leader);
  return text;
}

std::uint64_t HashOf(const Agreement& agreement) { return plan::HashOf(CanonicalText(agreement)); }

std::string DescribeGpuNetwork(std::uint32_t nccl_lanes) {
  if (nccl_lanes == 0) return "through the host's memory (gpu_network = staged)";
  return fmt::format("by NCCL from {} GPU{} (gpu_network = nccl)", nccl_lanes,
                     nccl_lanes == 1 ? "" : "s");
}

JobNodes NodesOf(const Agreement& agreement, std::uint32_t self) {
  JobNodes nodes;
  for (const AgreedNode& node : agreement.nodes) {
    nodes.nodes.push_back({.name = node.name, .ranks = node.ranks});
  }
  nodes.servers_count = agreement.servers_count;
  nodes.self = self;
  nodes.epoch = agreement.epoch;
  nodes.plan_version = agreement.plan_version;
  nodes.block_bytes = agreement.block_bytes;
  nodes.costs = agreement.costs;
  nodes.nccl_lanes = agreement.nccl_lanes;
  nodes.verify = agreement.verify;
  return nodes;
}

transport::GroupOptions GroupOf(const Agreement& agreement, std::uint32_t self, std::size_t lane,
                                std::uint32_t group) {
  HR_CHECK(self < agreement.nodes.size() && agreement.servers_count < agreement.nodes.size(), self,
           agreement.servers_count, agreement.nodes.size());
  transport::GroupOptions options;
  options.group = group;
  options.key = agreement.key;
  options.epoch = agreement.epoch;
  options.plan_version = agreement.plan_version;
  options.self = self;
  for (const AgreedNode& node : agreement.nodes) {
    HR_CHECK(lane < node.addresses.size(), node.name, lane);
    options.members.push_back({.name = node.name, .address = node.addresses[lane]});
  }
  options.servers_count = agreement.servers_count;
  options.algorithm = agreement.algorithm;
  return options;
}

void MergeCosts(std::vector<transport::CostLine>& slowest,
                const std::vector<transport::CostLine>& measured) {
  HR_CHECK(slowest.size() == measured.size(), slowest.size(), measured.size());
  for (std::size_t lane = 0; lane < slowest.size(); ++lane) {
    slowest[lane].startup_s = std::max(slowest[lane].startup_s, measured[lane].startup_s);
    slowest[lane].s_per_byte = std::max(slowest[lane].s_per_byte, measured[lane].s_per_byte);
  }
}

}  // namespace headrace::service
