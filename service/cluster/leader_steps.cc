// The steps of a job that all ranks have joined.
#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "service/cluster/leader.h"
#include "service/cluster/names.h"
#include "transport/probe/line_fit.h"

namespace headrace::service {

bool Leader::WantsServers(const Job& job) const {
  return (job.architecture.empty() ? options_.architecture : job.architecture) == kServersName;
}

std::string Leader::DescribeForming(const Job& job) const {
  if (job.stage == Stage::kForming) {
    std::vector<std::uint32_t> missing;
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      const bool seated = std::any_of(job.parts.begin(), job.parts.end(), [rank](const Part& part) {
        return part.ranks.contains(rank);
      });
      if (!seated) missing.push_back(rank);
    }
    if (missing.empty()) {
      return fmt::format(
          "no server has registered with the service on node {}: start one with "
          "--role server",
          options_.node_name);
    }
    const std::string& refused = RefusalOf(job);
    return fmt::format("{} of {} ranks have attached: {}{}{}", job.world_size - missing.size(),
                       job.world_size, MissingRanks(missing), refused.empty() ? "" : "; ", refused);
  }
  std::vector<std::string> slow;
  for (const Part& part : job.parts) {
    if (!part.answered) slow.push_back(NameOf(part));
  }
  if (slow.empty()) return {};
  const char* doing = job.stage == Stage::kOpening     ? "opening its links"
                      : job.stage == Stage::kMeasuring ? "measuring its links"
                                                       : "taking up the job";
  return fmt::format("all {} ranks have attached: waiting for {} {}", job.world_size,
                     NodeList(slow), doing);
}

void Leader::AnnounceForming(Job& job) {
  const std::string text = DescribeForming(job);
  const bool refused = job.stage == Stage::kForming && !RefusalOf(job).empty();
  for (Part& part : job.parts) {
    if (part.server || part.announced == text) continue;
    part.announced = text;
    Send(part, AnnounceJobForming{.job = part.number, .text = text, .refused = refused});
  }
}

void Leader::FormIfComplete(Job& job) {
  if (job.stage != Stage::kForming) return;
  std::size_t seated = 0;
  for (const Part& part : job.parts) seated += part.ranks.size();
  if (seated < job.world_size) return;
  // A node that has joined and has no rank yet has one that is taken; it hears that soon.
  std::erase_if(job.parts, [this, &job](const Part& part) {
    if (!part.ranks.empty()) return false;
    Send(part, AnnounceJobFailed{.job = part.number,
                                 .code = Code::kAlreadyExists,
                                 .cause = fmt::format("all {} ranks of job {} are on other nodes",
                                                      job.world_size, job.name)});
    return true;
  });
  std::sort(job.parts.begin(), job.parts.end(), [](const Part& one, const Part& other) {
    return one.ranks.begin()->first < other.ranks.begin()->first;
  });
  if (WantsServers(job)) {
    AddServers(job);
    if (!job.parts.back().server) return AnnounceForming(job);
  }
  Agree(job);
  BeginStep(job, Stage::kOpening);
}

void Leader::AddServers(Job& job) {
  std::vector<NodeId> servers;
  for (const auto& [id, node] : nodes_) {
    if (node.facts.server) servers.push_back(id);
  }
  std::sort(servers.begin(), servers.end(), [this](NodeId one, NodeId other) {
    return nodes_.at(one).facts.name < nodes_.at(other).facts.name;
  });
  for (const NodeId id : servers) {
    if (job.parts.size() >= transport::kNodesMax) return;
    const std::string& name = nodes_.at(id).facts.name;
    const bool known = std::any_of(job.parts.begin(), job.parts.end(),
                                   [&](const Part& part) { return NameOf(part) == name; });
    if (known) continue;
    job.parts.push_back({.node = id,
                         .number = kServerNumbers | ++servers_numbered_,
                         .ranks = {},
                         .server = true,
                         .announced = {}});
  }
}

void Leader::Agree(Job& job) {
  Agreement& agreement = job.agreement;
  agreement.job = job.name;
  agreement.world_size = job.world_size;
  agreement.epoch = job.epoch;
  agreement.key = options_.random_key();
  agreement.block_bytes = options_.block_bytes;
  agreement.verify = options_.verify;
  agreement.algorithm = options_.algorithm;
  for (Part& part : job.parts) {
    part.place = agreement.nodes.size();
    AgreedNode node{
        .name = NameOf(part), .ranks = {}, .addresses = nodes_.at(part.node).facts.addresses};
    for (const auto& [rank, pid] : part.ranks) node.ranks.push_back(rank);
    agreement.nodes.push_back(std::move(node));
    agreement.servers_count += part.server ? 1 : 0;
  }
  agreement.gpu_lanes = agreement.servers_count == 0 ? options_.gpu_lanes : 0;
}

void Leader::BeginStep(Job& job, Stage stage) {
  job.stage = stage;
  std::uint32_t self = 0;
  for (Part& part : job.parts) {
    part.answered = false;
    if (stage == Stage::kOpening) {
      Send(part, OpenJob{.job = part.number, .self = self++, .agreement = job.agreement});
    } else if (stage == Stage::kMeasuring) {
      Send(part, MeasureJob{.job = part.number});
    } else if (stage == Stage::kStarting) {
      Send(part,
           StartJob{
               .job = part.number, .costs = job.agreement.costs, .hash = HashOf(job.agreement)});
    }
  }
  if (stage != Stage::kRunning) AnnounceForming(job);
}

// Whether that was an answer to the step that is under way.
bool Leader::Answer(Job& job, Part& part, Stage stage) {
  if (job.stage != stage || part.answered) return false;
  part.answered = true;
  return true;
}

void Leader::Handle(Job& job, Part& part, const JobOpened& opened) {
  if (!Answer(job, part, Stage::kOpening)) return;
  if (opened.code != Code::kOk) {
    Fail(job, opened.code,
         fmt::format("node {} cannot open its links: {}", NameOf(part), opened.cause));
    return;
  }
  Advance(job);
}

void Leader::Handle(Job& job, Part& part, const JobMeasured& measured) {
  if (!Answer(job, part, Stage::kMeasuring)) return;
  if (measured.code != Code::kOk) {
    Fail(job, measured.code,
         fmt::format("node {} cannot measure its links: {}", NameOf(part), measured.cause));
    return;
  }
  if (measured.costs.size() != options_.lanes_count) {
    Fail(job, Code::kCorrupt,
         fmt::format("node {} measured {} lanes of {}", NameOf(part), measured.costs.size(),
                     options_.lanes_count));
    return;
  }
  for (const transport::CostLine& cost : measured.costs) {
    if (IsCost(cost)) continue;
    return Fail(job, Code::kCorrupt,
                fmt::format("node {} measured {} s and {} s a byte", NameOf(part), cost.startup_s,
                            cost.s_per_byte));
  }
  // Bytes are never free.
  job.agreement.costs.resize(options_.lanes_count, {0, transport::kSecondsPerByteMin});
  MergeCosts(job.agreement.costs, measured.costs);
  Advance(job);
}

void Leader::Handle(Job& job, Part& part, const JobStarted& started) {
  if (!Answer(job, part, Stage::kStarting)) return;
  const std::uint64_t agreed = HashOf(job.agreement);
  if (started.hash != agreed) {
    Fail(job, Code::kMismatch,
         fmt::format("node {} agreed on plan {:016x}, the leader on {:016x}: install the same "
                     "release on both",
                     NameOf(part), started.hash, agreed));
    return;
  }
  Advance(job);
}

void Leader::Advance(Job& job) {
  const bool all = std::all_of(job.parts.begin(), job.parts.end(),
                               [](const Part& part) { return part.answered; });
  if (!all) return AnnounceForming(job);
  const Stage next = job.stage == Stage::kOpening     ? Stage::kMeasuring
                     : job.stage == Stage::kMeasuring ? Stage::kStarting
                                                      : Stage::kRunning;
  if (next == Stage::kStarting) {
    BeginPlanning(job);
    if (job.agreement.verify != 0) job.verification.emplace(job.agreement);
  }
  BeginStep(job, next);
}

}  // namespace headrace::service
