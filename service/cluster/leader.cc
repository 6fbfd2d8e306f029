#include "service/cluster/leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <variant>

#include "ipc/base/check.h"
#include "service/cluster/hand_over.h"
#include "service/cluster/leader_names.h"

namespace headrace::service {
Status Leader::CheckNode(const NodeFacts& facts, const std::string& address) const {
  const LeaderOptions& options = jobs_.options();
  if (facts.protocol_version != options.protocol_version) {
    return Error(
        Code::kVersionMismatch,
        fmt::format(
            "{} on node {} speaks peer protocol {}, {} on node {} speaks {}: "
            "update the service on node {}, which is older",
            options.program, options.node_name, options.protocol_version, facts.program, facts.name,
            facts.protocol_version,
            facts.protocol_version < options.protocol_version ? facts.name : options.node_name));
  }
  if (!options.peers.empty() && !options.peers.contains(facts.name)) {
    return Error(Code::kPermissionDenied,
                 fmt::format("node {} ({}) is not in the list of peers of node {}: add it there",
                             facts.name, address, options.node_name));
  }
  // Servers have no GPUs and move no GPU memory, so their nccl_lanes need not match.
  if (!facts.server && facts.nccl_lanes != options.nccl_lanes) {
    return Error(Code::kMismatch,
                 fmt::format("node {} carries GPU memory to other nodes {}, node {} {}: give both "
                             "the same gpu_network, and with nccl equally many GPUs",
                             facts.name, DescribeGpuNetwork(facts.nccl_lanes), options.node_name,
                             DescribeGpuNetwork(options.nccl_lanes)));
  }
  if (options.lanes_count == 0) {
    return Error(Code::kUnavailable,
                 fmt::format("the service on node {} has no lane between nodes: no job can meet "
                             "there",
                             options.node_name));
  }
  if (facts.addresses.size() != options.lanes_count) {
    return Error(
        Code::kMismatch,
        fmt::format("node {} has {} lanes between nodes, node {} has {}: give all nodes "
                    "equally many",
                    facts.name, facts.addresses.size(), options.node_name, options.lanes_count));
  }
  for (const auto& [id, other] : jobs_.nodes()) {
    if (other.facts.name != facts.name || other.facts.instance == facts.instance) continue;
    return Error(Code::kAlreadyExists,
                 fmt::format("node name {} of the service at {} is taken by the one at {}: give "
                             "one of them another",
                             facts.name, address, other.address));
  }
  return {};
}

void Leader::OnNodeUp(NodeId node, NodeFacts facts, std::string address) {
  std::string control = ControlAddress(facts.control, address);
  const bool is_new = jobs_.nodes()
                          .emplace(node, LedJobs::Node{.facts = std::move(facts),
                                                       .address = std::move(address),
                                                       .control = std::move(control)})
                          .second;
  HR_CHECK(is_new, node);
  // A job may have waited for a server.
  for (auto at = jobs_.all().begin(); at != jobs_.all().end();) {
    steps_.FormIfComplete((at++)->second);
  }
}

void Leader::OnNodeRefused(const std::string& why) {
  if (!jobs_.SetRefused(why) || why.empty()) return;
  for (auto& [number, job] : jobs_.all()) {
    if (job.phase != LedJob::Phase::kForming) continue;
    // For as long as it waits: what it ends with, if nobody comes, is to name the refusal.
    if (job.refused_node.empty()) job.refused = why;
    jobs_.AnnounceForming(job);
  }
}

void Leader::OnNodeDown(NodeId node, Code code, const std::string& cause) {
  if (!jobs_.nodes().contains(node)) return;
  std::vector<LedJobs::JobNumber> touched;
  for (const auto& [number, job] : jobs_.all()) {
    if (job.HasNode(node)) touched.push_back(number);
  }
  for (const LedJobs::JobNumber number : touched) {
    LedJob& job = jobs_.all().at(number);
    const auto participant =
        std::find_if(job.participants.begin(), job.participants.end(),
                     [node](const LedJob::Participant& each) { return each.node == node; });
    HR_CHECK(participant != job.participants.end(), node, number);
    if (job.phase == LedJob::Phase::kForming || participant->forgot) {
      members_.RemovePart(number, node);
    } else {
      jobs_.FailJob(job, code, cause);
    }
  }
  quorums_.OnNodeDown(node);
  jobs_.ForgetNode(node);
  quorums_.ShowApplicants();
}

void Leader::Handle(NodeId node, const PeerMessage& message, TimeNs now) {
  if (!jobs_.nodes().contains(node)) return;
  std::visit(
      [this, node, now]<typename Message>(const Message& each) {
        if constexpr (std::is_same_v<Message, JoinJob>) {
          members_.OnJoinJob(node, each, now);
        } else if constexpr (std::is_same_v<Message, ReportQuorum>) {
          quorums_.Handle(node, each);
        } else if constexpr (std::is_same_v<Message, LeaveQuorum>) {
          quorums_.Handle(node, each);
        } else if constexpr (std::is_same_v<Message, ReportJobPlaces>) {
          quorums_.Handle(node, each);
        } else if constexpr (kIsOneOf<Message, MessageOfNode>) {
          HandOfJob(node, each, now);
        }
      },
      message);
  quorums_.CallMembers();
  quorums_.ShowApplicants();
}

template <typename Message>
void Leader::HandOfJob(NodeId node, const Message& message, TimeNs now) {
  const auto found = jobs_.Find(node, message.job);
  if (found == jobs_.all().end()) return;
  LedJob& job = found->second;
  const auto participant = std::find_if(job.participants.begin(), job.participants.end(),
                                        [&](const LedJob::Participant& one) {
                                          return one.node == node && one.number == message.job;
                                        });
  HR_CHECK(participant != job.participants.end(), node, message.job);
  HandOver(std::tie(members_, steps_, plans_, settings_), now, job, *participant, message);
}

}  // namespace headrace::service
