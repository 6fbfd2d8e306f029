#include "service/cluster/leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "ipc/base/check.h"
#include "service/cluster/names.h"

namespace headrace::service {
namespace {

const char* DescribeStart(bool goes_on) { return goes_on ? "goes on" : "begins"; }

}  // namespace

Status Leader::CheckNode(const NodeFacts& facts, const std::string& address) const {
  if (facts.protocol_version != options_.protocol_version) {
    return Error(
        Code::kVersionMismatch,
        fmt::format(
            "{} on node {} speaks peer protocol {}, {} on node {} speaks {}: "
            "update the service on node {}, which is older",
            options_.program, options_.node_name, options_.protocol_version, facts.program,
            facts.name, facts.protocol_version,
            facts.protocol_version < options_.protocol_version ? facts.name : options_.node_name));
  }
  if (!options_.peers.empty() && !options_.peers.contains(facts.name)) {
    return Error(Code::kPermissionDenied,
                 fmt::format("node {} ({}) is not in the list of peers of node {}: add it there",
                             facts.name, address, options_.node_name));
  }
  // Servers have no GPUs, and carry none's memory.
  if (!facts.server && facts.gpu_lanes != options_.gpu_lanes) {
    return Error(Code::kMismatch,
                 fmt::format("node {} carries GPU memory to other nodes {}, node {} {}: give both "
                             "the same gpu_network, and with nccl equally many GPUs",
                             facts.name, DescribeGpuLanes(facts.gpu_lanes), options_.node_name,
                             DescribeGpuLanes(options_.gpu_lanes)));
  }
  if (options_.lanes_count == 0) {
    return Error(Code::kUnavailable,
                 fmt::format("the service on node {} has no lane between nodes: no job can meet "
                             "there",
                             options_.node_name));
  }
  if (facts.addresses.size() != options_.lanes_count) {
    return Error(
        Code::kMismatch,
        fmt::format("node {} has {} lanes between nodes, node {} has {}: give all nodes "
                    "equally many",
                    facts.name, facts.addresses.size(), options_.node_name, options_.lanes_count));
  }
  for (const auto& [id, other] : nodes_) {
    if (other.facts.name != facts.name || other.facts.instance == facts.instance) continue;
    return Error(Code::kAlreadyExists,
                 fmt::format("node name {} of the service at {} is taken by the one at {}: give "
                             "one of them another",
                             facts.name, address, other.address));
  }
  return {};
}

void Leader::OnNodeUp(NodeId node, NodeFacts facts, std::string address) {
  const bool is_new =
      nodes_.emplace(node, Node{.facts = std::move(facts), .address = std::move(address)}).second;
  HR_CHECK(is_new, node);
  // A job may have waited for a server.
  for (auto at = jobs_.begin(); at != jobs_.end();) FormIfComplete((at++)->second);
}

void Leader::OnNodeRefused(const std::string& why) {
  if (std::exchange(refused_, why) == why || why.empty()) return;
  for (auto& [number, job] : jobs_) {
    if (job.stage != Stage::kForming) continue;
    // For as long as it waits: what it ends with, if nobody comes, is to name the refusal.
    if (job.refused_node.empty()) job.refused = why;
    AnnounceForming(job);
  }
}

void Leader::OnNodeDown(NodeId node, Code code, const std::string& cause) {
  if (!nodes_.contains(node)) return;
  std::vector<JobNumber> touched;
  for (const auto& [number, job] : jobs_) {
    const bool has_part = std::any_of(job.parts.begin(), job.parts.end(),
                                      [node](const Part& part) { return part.node == node; });
    if (has_part) touched.push_back(number);
  }
  for (const JobNumber number : touched) {
    Job& job = jobs_.at(number);
    const auto part = std::find_if(job.parts.begin(), job.parts.end(),
                                   [node](const Part& each) { return each.node == node; });
    if (job.stage == Stage::kForming || part->forgot) {
      RemovePart(number, node);
    } else {
      Fail(job, code, cause);
    }
  }
  nodes_.erase(node);
  std::erase_if(messages_, [node](const ToNode& each) { return each.node == node; });
}

void Leader::Handle(NodeId node, const PeerMessage& message, TimeNs now) {
  if (!nodes_.contains(node)) return;
  if (const auto* join = std::get_if<JoinJob>(&message)) return OnJoinJob(node, *join, now);
  std::visit(
      [this, node, now](const auto& each) {
        constexpr bool kTimed = requires(Job & job, Part & part) { Handle(job, part, each, now); };
        if constexpr (kTimed || requires(Job & job, Part & part) { Handle(job, part, each); }) {
          const auto found = Find(node, each.job);
          if (found == jobs_.end()) return;
          Job& job = found->second;
          const auto part = std::find_if(job.parts.begin(), job.parts.end(), [&](const Part& one) {
            return one.node == node && one.number == each.job;
          });
          if constexpr (kTimed) {
            Handle(job, *part, each, now);
          } else {
            Handle(job, *part, each);
          }
        }
      },
      message);
}

Leader::Jobs::iterator Leader::Find(NodeId node, std::uint32_t number) {
  return std::find_if(jobs_.begin(), jobs_.end(), [node, number](const auto& entry) {
    const auto& parts = entry.second.parts;
    return std::any_of(parts.begin(), parts.end(), [node, number](const Part& part) {
      return part.node == node && part.number == number;
    });
  });
}

Leader::JobNumber Leader::NumberOf(const Job& job) const {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&job](const auto& entry) { return &entry.second == &job; });
  HR_CHECK(found != jobs_.end(), job.name);
  return found->first;
}

// A job that has begun takes nobody in. While it ends, the next epoch of that name may gather.
Result<Leader::JobNumber> Leader::Place(const JoinJob& join, TimeNs now) {
  for (const auto& [number, job] : jobs_) {
    if (job.name != join.name) continue;
    if (job.stage == Stage::kForming) return number;
    const bool ends =
        !job.ended.empty() || std::any_of(job.parts.begin(), job.parts.end(),
                                          [](const Part& part) { return part.forgot; });
    if (ends) continue;
    return Error(Code::kAlreadyExists,
                 fmt::format("job {} goes on with all of its {} ranks since its epoch {}: give "
                             "this job another name",
                             job.name, job.world_size, job.epoch));
  }
  if (jobs_.size() >= kJobsLedMax) {
    return Error(Code::kExhausted,
                 fmt::format("the service on node {} leads {} jobs, more are not supported",
                             options_.node_name, jobs_.size()));
  }
  Job job;
  job.name = join.name;
  job.world_size = join.world_size;
  job.uid = join.uid;
  job.architecture = join.architecture;
  job.epoch = ++jobs_opened_;
  if (const auto* refusal = refused_ranks_.Find(job.name, job.uid, now); refusal != nullptr) {
    job.refused = refusal->cause;
    job.refused_node = refusal->node;
  }
  const JobNumber number = options_.next_number ? options_.next_number() : jobs_opened_;
  jobs_.emplace(number, std::move(job));
  return number;
}

Status Leader::CheckJoin(NodeId node, const JoinJob& join, const Job& job) const {
  const auto joined = std::count_if(jobs_.begin(), jobs_.end(), [node](const auto& entry) {
    const auto& parts = entry.second.parts;
    return std::any_of(parts.begin(), parts.end(),
                       [node](const Part& part) { return part.node == node; });
  });
  if (static_cast<std::size_t>(joined) >= kJobsOfNodeMax && !options_.in_process) {
    return Error(Code::kExhausted, fmt::format("node {} takes part in {} jobs here, more are not "
                                               "supported",
                                               nodes_.at(node).facts.name, joined));
  }
  if (job.parts.empty()) return {};
  const std::string& first = NameOf(job.parts.front());
  if (join.uid != job.uid) {
    return Error(Code::kPermissionDenied,
                 fmt::format("job {} belongs to uid {} on node {}, here it is of uid {}: give this "
                             "job another name",
                             job.name, job.uid, first, join.uid));
  }
  if (join.world_size != job.world_size) {
    return Error(
        Code::kMismatch,
        fmt::format("the ranks of job {} differ in its size: on node {} they say {}, on "
                    "node {} {}: start all with the same WORLD_SIZE",
                    job.name, first, job.world_size, nodes_.at(node).facts.name, join.world_size));
  }
  if (join.architecture != job.architecture) {
    return Error(Code::kMismatch,
                 fmt::format("the ranks of job {} differ in its architecture: on node {} they say "
                             "\"{}\", on node {} \"{}\": start all with the same "
                             "HEADRACE_ARCHITECTURE",
                             job.name, first, job.architecture, nodes_.at(node).facts.name,
                             join.architecture));
  }
  // A node is in a job once: its ranks would count twice.
  for (const Part& part : job.parts) {
    if (NameOf(part) != nodes_.at(node).facts.name) continue;
    return Error(Code::kAlreadyExists,
                 fmt::format("node {} has joined job {} already", NameOf(part), job.name));
  }
  if (job.parts.size() >= transport::kNodesMax) {
    return Error(Code::kExhausted, fmt::format("job {} has ranks on {} nodes, more are not "
                                               "supported",
                                               job.name, job.parts.size()));
  }
  return {};
}

void Leader::OnJoinJob(NodeId node, const JoinJob& join, TimeNs now) {
  if (nodes_.at(node).facts.server || join.job >= kServerNumbers ||
      Find(node, join.job) != jobs_.end()) {
    return;
  }
  const Part part{.node = node, .number = join.job, .ranks = {}, .announced = {}};
  const Result<JobNumber> number = Place(join, now);
  const Status status = number ? CheckJoin(node, join, jobs_.at(*number)) : Status(number.error());
  if (!status) {
    Send(part,
         AnnounceJobFailed{.job = join.job, .code = status.code(), .cause = status.error().text()});
    if (!number) return;
    Job& job = jobs_.at(*number);
    NoteRefused(node, status.error().text());
    if (job.parts.empty()) {
      jobs_.erase(*number);
    } else if (status.code() == Code::kMismatch) {
      // Of one user, who contradicts himself: the job cannot come about.
      for (const Part& other : job.parts) NoteRefused(other.node, status.error().text());
      Fail(job, status.code(), status.error().text());
    } else if (status.code() != Code::kAlreadyExists) {
      job.refused =
          fmt::format("node {} was refused: {}", nodes_.at(node).facts.name, status.error().text());
      job.refused_node = nodes_.at(node).facts.name;
      AnnounceForming(job);
    }
    return;
  }
  Job& job = jobs_.at(*number);
  job.parts.push_back(part);
  AnnounceForming(job);
}

Status Leader::CheckRankAttached(const Job& job, const Part& part,
                                 const ReportRankAttached& rank) const {
  if (Status status = lost_.Check(job.name, job.uid, rank.after_epoch); !status) return status;
  const Part* first = nullptr;  // of those with ranks
  for (const Part& other : job.parts) {
    if (first == nullptr && !other.ranks.empty()) first = &other;
    const auto taken = other.ranks.find(rank.rank);
    if (other.node == part.node || taken == other.ranks.end()) continue;
    return Error(
        Code::kAlreadyExists,
        fmt::format("rank {} of job {} is taken twice: by pid {} on node {} and by "
                    "pid {} on node {}",
                    rank.rank, job.name, taken->second, NameOf(other), rank.pid, NameOf(part)));
  }
  if (first == nullptr || job.goes_on == (rank.after_epoch != 0)) return {};
  return Error(
      Code::kMismatch,
      fmt::format("of job {}, rank {} (pid {}) on node {} {} and {} {}: ranks that go on after "
                  "a reconnect and ranks that begin are never one job: end all of them "
                  "and begin anew",
                  job.name, rank.rank, rank.pid, NameOf(part), DescribeStart(rank.after_epoch != 0),
                  DescribeRank(*first, first->ranks.begin()->first), DescribeStart(job.goes_on)));
}

void Leader::Handle(Job& job, Part& part, const ReportRankAttached& rank) {
  if (job.stage != Stage::kForming || rank.rank >= job.world_size) return;
  if (const Status status = CheckRankAttached(job, part, rank); !status) {
    NoteRefused(part.node, status.error().text());
    // Those that have come would wait for it in vain.
    return Fail(job, status.code(), status.error().text());
  }
  if (rank.after_epoch == 0) lost_.Forget(job.name);
  job.goes_on = rank.after_epoch != 0;
  job.epoch = std::max(job.epoch, rank.after_epoch + 1);
  part.ranks.insert_or_assign(rank.rank, rank.pid);
  if (job.refused_node == NameOf(part)) job.refused.clear();
  refused_ranks_.Forget(job.name, job.uid, NameOf(part));
  AnnounceForming(job);
  FormIfComplete(job);
}

void Leader::NoteRefused(NodeId node, const std::string& why) {
  const Node& other = nodes_.at(node);
  if (other.facts.name == options_.node_name) return;
  refused_nodes_.push_back({.name = other.facts.name, .address = other.address, .why = why});
}

void Leader::RemovePart(JobNumber number, NodeId node) {
  Job& job = jobs_.at(number);
  std::erase_if(job.parts, [node](const Part& part) { return part.node == node; });
  if (job.stage != Stage::kForming) return CloseIfForgotten(job);
  if (job.parts.empty()) {
    jobs_.erase(number);
  } else {
    AnnounceForming(job);
  }
}

void Leader::Handle(Job& job, Part& part, const ReportRankLost& lost) {
  const std::string cause = fmt::format("{} {}", DescribeRank(part, lost.rank), lost.cause);
  if (lost.exited) lost_.Note(job.name, {.uid = job.uid, .epoch = job.epoch, .cause = cause});
  Fail(job, Code::kPeerLost, cause);
}

void Leader::Handle(Job& job, Part& part, const ReportRankLeft& left) {
  if (!part.ranks.contains(left.rank)) return;
  if (job.stage < Stage::kStarting) {
    Fail(job, Code::kPeerLost,
         fmt::format("{} left the job before all of its nodes were linked",
                     DescribeRank(part, left.rank)));
    return;
  }
  if (!job.ended.insert(left.rank).second) return;
  job.planning->Stop();
  for (const Part& other : job.parts) {
    if (other.node == part.node || other.server) continue;
    Send(other, AnnounceRankLeft{.job = other.number,
                                 .rank = left.rank,
                                 .posted = left.posted,
                                 .iterations = left.iterations,
                                 .cause = DescribeRank(part, left.rank) + " left the job"});
  }
}

void Leader::Handle(Job& job, Part& part, const ReportJobFailed& failed, TimeNs now) {
  if (IsDrain(job, failed)) return OnNodeDrained(job, part);
  const std::string cause =
      part.server ? failed.cause : fmt::format("{} (on node {})", failed.cause, NameOf(part));
  if (job.stage == Stage::kForming && part.ranks.empty()) {  // its rank was refused there
    NoteRefused(part.node, cause);
    refused_ranks_.Note({.job = job.name, .uid = job.uid, .node = NameOf(part), .cause = cause},
                        now);
  }
  Fail(job, failed.code, cause);
}

void Leader::Handle(Job& job, Part& part, const ForgetJob& /*forget*/) {
  if (job.stage < Stage::kStarting) {
    Fail(job, Code::kPeerLost,
         fmt::format("the ranks on node {} are gone before all nodes were linked", NameOf(part)));
    return;
  }
  part.forgot = true;
  CloseIfForgotten(job);
}

void Leader::CloseIfForgotten(Job& job) {
  const bool over = std::all_of(job.parts.begin(), job.parts.end(),
                                [](const Part& part) { return part.server || part.forgot; });
  if (!over) return;
  for (const Part& part : job.parts) Send(part, CloseJob{.job = part.number});
  jobs_.erase(NumberOf(job));
}

void Leader::Fail(Job& job, Code code, const std::string& cause) {
  // A rank may well die of what a drain refuses it.
  const std::string said =
      job.drain && code != CodeOfEnd(*job.drain)
          ? fmt::format("{}; {} had asked to drain the job", cause, DescribeAsker(*job.drain))
          : cause;
  for (const Part& part : job.parts) {
    Send(part, AnnounceJobFailed{.job = part.number, .code = code, .cause = said});
  }
  jobs_.erase(NumberOf(job));
}

std::string Leader::DescribeRank(const Part& part, std::uint32_t rank) const {
  const auto found = part.ranks.find(rank);
  if (found == part.ranks.end()) return fmt::format("rank {} on node {}", rank, NameOf(part));
  return fmt::format("rank {} (pid {}) on node {}", rank, found->second, NameOf(part));
}

void Leader::Send(const Part& part, PeerMessage message) {
  messages_.push_back({.node = part.node, .message = std::move(message)});
}

}  // namespace headrace::service
