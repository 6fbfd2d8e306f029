#include "tests/support/hand_driven_cluster.h"

#include <algorithm>

namespace headrace::support {
namespace {

constexpr TimeNs kStepMax = 50 * kMicrosecond;
constexpr std::uint64_t kKey = 0x1234567812345678;

}  // namespace

HandDrivenCluster::HandDrivenCluster(const ClusterSpec& spec) : network_(spec.network) {
  for (std::uint32_t i = 0; i < spec.nodes_count; ++i) {
    transport::Wire& wire = network_.AddWire(NameOf(i));
    addresses_.push_back(wire.address());
    auto node = std::make_unique<Node>();
    node->exchange =
        std::make_unique<transport::Exchange>(wire, transport::ExchangeOptions{.name = "net0"});
    node->node =
        std::make_unique<HandDrivenNode>(spec.make, spec.credit_bytes, node->exchange.get());
    nodes_.push_back(std::move(node));
  }
  network_.AdvanceTo(nodes_.front()->node->now);
}

void HandDrivenCluster::OpenLinks(const JobSpec& job, std::uint32_t nodes_count) {
  for (std::uint32_t self = 0; self < nodes_count; ++self) {
    transport::GroupOptions options{.group = job.id.value,
                                    .key = kKey + job.id.value,
                                    .epoch = 1,
                                    .plan_version = 1,
                                    .self = self,
                                    .members = {},
                                    .servers_count = 0};
    for (std::uint32_t i = 0; i < nodes_count; ++i) {
      options.members.push_back({NameOf(i), addresses_[i]});
    }
    nodes_[self]->node->SendToNetworkLane(service::OpenGroup{std::move(options)});
    nodes_[self]->node->SendToNetworkLane(service::SetCost{job.id.value, {20e-6, 1e-9}});
  }
}

void HandDrivenCluster::TellFormed(std::size_t node, const JobSpec& job,
                                   const std::vector<std::vector<std::uint32_t>>& ranks,
                                   std::uint64_t block_bytes) {
  service::JobNodes nodes;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    nodes.nodes.push_back({.name = NameOf(i), .ranks = ranks[i]});
  }
  nodes.self = static_cast<std::uint32_t>(node);
  nodes.block_bytes = block_bytes;
  nodes.costs = {{20e-6, 1e-9}};
  nodes_[node]->node->Send(service::JobFormed{job.id, std::move(nodes)});
}

void HandDrivenCluster::Form(const JobSpec& job,
                             const std::vector<std::vector<std::uint32_t>>& ranks,
                             std::uint64_t block_bytes) {
  OpenLinks(job, static_cast<std::uint32_t>(ranks.size()));
  for (std::size_t i = 0; i < ranks.size(); ++i) TellFormed(i, job, ranks, block_bytes);
}

void HandDrivenCluster::CloseLinks(std::size_t node, JobId job, const std::string& cause) {
  nodes_[node]->node->SendToNetworkLane(service::CloseGroup{job.value, cause});
}

void HandDrivenCluster::Vanish(std::size_t node, transport::Silence silence) {
  nodes_[node]->vanished = true;
  network_.Vanish(NameOf(node), silence);
}

void HandDrivenCluster::SettleAll() {
  bool worked = true;
  while (worked) {
    worked = false;
    for (const auto& node : nodes_) worked |= !node->vanished && node->node->Settle();
  }
}

void HandDrivenCluster::Advance(TimeNs time_ns) {
  const TimeNs end = now() + time_ns;
  SettleAll();
  while (now() < end) {
    // Small steps where nothing is due on the network: a node's own lanes take time as well.
    const TimeNs next = std::min(network_.NextDue(), now() + kStepMax);
    network_.AdvanceTo(std::min(std::max(next, now() + 1), end));
    for (const auto& node : nodes_) node->node->now = now();
    SettleAll();
  }
}

}  // namespace headrace::support
