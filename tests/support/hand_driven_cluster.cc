#include "tests/support/hand_driven_cluster.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::support {
namespace {

constexpr TimeNs kStepMax = 50 * kMicrosecond;

std::string RailName(const std::string& wire_name, std::size_t rail, std::size_t next = 0) {
  const std::string name = rail == 0 ? wire_name : wire_name + std::to_string(rail);
  return next == 0 ? name : name + "~" + std::to_string(next);
}

}  // namespace

HandDrivenCluster::HandDrivenCluster(const ClusterSpec& spec)
    : spec_(spec), network_(spec.network) {
  addresses_.resize(spec.nodes_count);
  for (std::uint32_t i = 0; i < spec.nodes_count; ++i) {
    nodes_.push_back(MakeNode(i, NameOf(i)));
  }
  network_.AdvanceTo(nodes_.front()->node->now);
}

transport::Wire& HandDrivenCluster::MakeWire(Node& node, std::uint32_t rail) {
  if (!spec_.rails_stand_in) return network_.AddWire(RailName(node.wire_name, rail));
  std::vector<transport::Wire*> wires;
  for (std::uint32_t next = 0; next < spec_.rails_count; ++next) {
    wires.push_back(&network_.AddWire(RailName(node.wire_name, rail, next)));
  }
  node.wires.push_back(std::make_unique<transport::RailWire>(std::move(wires), ++wires_count_));
  return *node.wires.back();
}

std::unique_ptr<HandDrivenCluster::Node> HandDrivenCluster::MakeNode(std::size_t index,
                                                                     const std::string& wire_name) {
  std::vector<std::string>& addresses = addresses_[index];
  auto node = std::make_unique<Node>();
  node->wire_name = wire_name;
  addresses.clear();
  std::vector<transport::NetworkTransport*> networks;
  const auto residuals = std::make_shared<transport::ServedResiduals>(0);
  for (std::uint32_t rail = 0; rail < spec_.rails_count; ++rail) {
    transport::Wire& wire = MakeWire(*node, rail);
    addresses.push_back(wire.address());
    transport::ExchangeOptions options = spec_.exchange;
    if (spec_.device_codec) options.device_codec = spec_.device_codec(index);
    node->exchanges.push_back(std::make_unique<transport::Exchange>(wire, options, residuals));
    node->observed.push_back(std::make_unique<ObservedNetwork>(*node->exchanges.back()));
    networks.push_back(node->observed.back().get());
  }
  node->node =
      std::make_unique<HandDrivenNode>(spec_.make, spec_.credit_bytes, networks, spec_.gpus);
  return node;
}

void HandDrivenCluster::OpenLinks(const JobSpec& job, std::uint32_t nodes_count) {
  for (std::uint32_t self = 0; self < nodes_count; ++self) {
    transport::GroupOptions options{.group = job.id.value,
                                    .key = KeyOf(job.id),
                                    .epoch = 1,
                                    .plan_version = 1,
                                    .self = self,
                                    .members = {},
                                    .servers_count = spec_.servers_count};
    for (std::uint32_t rail = 0; rail < spec_.rails_count; ++rail) {
      options.members.clear();
      for (std::uint32_t i = 0; i < nodes_count; ++i) {
        options.members.push_back({NameOf(i), addresses_[i][rail]});
      }
      nodes_[self]->node->SendToNetworkLane(rail, service::OpenGroup{options});
    }
    nodes_[self]->node->SendToNetworkLanes(service::SetCost{job.id.value, {20e-6, 1e-9}});
  }
}

void HandDrivenCluster::TellFormed(std::size_t node, const JobSpec& job,
                                   const std::vector<std::vector<std::uint32_t>>& ranks,
                                   std::uint64_t block_bytes) {
  service::JobNodes nodes;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    nodes.nodes.push_back({.name = NameOf(i), .ranks = ranks[i]});
  }
  for (std::uint32_t i = 0; i < spec_.servers_count; ++i) {
    nodes.nodes.push_back({.name = NameOf(ranks.size() + i), .ranks = {}});
  }
  nodes.servers_count = spec_.servers_count;
  nodes.self = static_cast<std::uint32_t>(node);
  nodes.block_bytes = block_bytes;
  nodes.costs.assign(spec_.rails_count, {20e-6, 1e-9});
  nodes.nccl_lanes = spec_.nccl_lanes;
  nodes.verify = spec_.verify;
  nodes_[node]->node->Send(service::JobFormed{job.id, std::move(nodes)});
}

void HandDrivenCluster::Form(const JobSpec& job,
                             const std::vector<std::vector<std::uint32_t>>& ranks,
                             std::uint64_t block_bytes) {
  OpenLinks(job, static_cast<std::uint32_t>(ranks.size()) + spec_.servers_count);
  for (std::size_t i = 0; i < ranks.size(); ++i) TellFormed(i, job, ranks, block_bytes);
}

void HandDrivenCluster::CloseLinks(std::size_t node, JobId job, const std::string& cause) {
  nodes_[node]->node->SendToNetworkLanes(service::CloseGroup{job.value, cause});
}

void HandDrivenCluster::Vanish(std::size_t node, transport::Silence silence) {
  nodes_[node]->vanished = true;
  for (std::size_t rail = 0; rail < spec_.rails_count; ++rail) {
    for (std::size_t next = 0; next < (spec_.rails_stand_in ? spec_.rails_count : 1); ++next) {
      network_.Vanish(WireName(node, rail, next), silence);
    }
  }
}

void HandDrivenCluster::Replace(std::size_t node, const std::string& wire_name) {
  HR_CHECK(nodes_[node]->vanished, node);
  replaced_.push_back(std::move(nodes_[node]));
  nodes_[node] = MakeNode(node, wire_name);
  nodes_[node]->node->now = now();
}

std::string HandDrivenCluster::WireName(std::size_t node, std::size_t rail,
                                        std::size_t next) const {
  return RailName(nodes_[node]->wire_name, rail, next);
}

// Visits each lane, and which of its wires is on that network.
template <typename Visit>
void HandDrivenCluster::ForEachLaneOn(std::size_t rail, Visit visit) const {
  HR_CHECK(spec_.rails_stand_in, rail);
  for (std::size_t lane = 0; lane < spec_.rails_count; ++lane) {
    visit(lane, (rail + spec_.rails_count - lane) % spec_.rails_count);
  }
}

void HandDrivenCluster::CutRail(std::size_t one, std::size_t other, std::size_t rail,
                                transport::Silence silence) {
  ForEachLaneOn(rail, [&, this](std::size_t lane, std::size_t next) {
    network_.Cut(WireName(one, lane, next), WireName(other, lane, next), silence);
  });
}

void HandDrivenCluster::MendRail(std::size_t one, std::size_t other, std::size_t rail) {
  ForEachLaneOn(rail, [&, this](std::size_t lane, std::size_t next) {
    network_.Mend(WireName(one, lane, next), WireName(other, lane, next));
  });
}

void HandDrivenCluster::Resume(std::size_t node) {
  nodes_[node]->stands_still = false;
  nodes_[node]->node->now = now();
}

void HandDrivenCluster::SettleAll() {
  bool worked = true;
  while (worked) {
    worked = false;
    for (const auto& node : nodes_) worked |= node->Runs() && node->node->Settle();
  }
}

TimeNs HandDrivenCluster::NextDue() {
  TimeNs next = network_.NextDue();
  for (const auto& node : nodes_) {
    if (!node->Runs()) continue;
    next = std::min(next, node->node->dispatch().NextDeadline());
    for (const auto& exchange : node->exchanges) next = std::min(next, exchange->NextLook());
    // How long its own lane takes, a node does not tell.
    if (!node->node->transport().open().empty()) next = std::min(next, now() + kStepMax);
  }
  return next;
}

void HandDrivenCluster::StepTo(TimeNs now) {
  network_.AdvanceTo(now);
  for (const auto& node : nodes_) {
    if (node->Runs()) node->node->now = now;
  }
  SettleAll();
}

void HandDrivenCluster::Advance(TimeNs time_ns) {
  const TimeNs end = now() + time_ns;
  SettleAll();
  while (now() < end) StepTo(std::min(std::max(NextDue(), now() + 1), end));
}

}  // namespace headrace::support
