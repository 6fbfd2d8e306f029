#include "service/cluster/leader_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "service/cluster/names.h"
#include "transport/probe/line_fit.h"

namespace headrace::service {

bool LeaderSteps::WantsServers(const Job& job) const {
  return job.architecture.value_or(jobs_.options().architecture) == Architecture::kParameterServer;
}

void LeaderSteps::FormIfComplete(Job& job) {
  if (job.phase != Phase::kForming) return;
  std::size_t attached = 0;
  for (const Participant& participant : job.participants) attached += participant.ranks.size();
  if (attached < job.world_size) return;
  HR_CHECK(attached == job.world_size, attached, job.world_size);
  // A node that has joined and has no rank yet has one that is taken; it receives that soon.
  std::erase_if(job.participants, [this, &job](const Participant& participant) {
    if (!participant.ranks.empty()) return false;
    jobs_.Send(participant,
               AnnounceJobFailed{.job = participant.number,
                                 .code = Code::kAlreadyExists,
                                 .cause = fmt::format("all {} ranks of job {} are on other nodes",
                                                      job.world_size, job.name)});
    return true;
  });
  std::sort(job.participants.begin(), job.participants.end(),
            [](const Participant& one, const Participant& other) {
              return one.ranks.begin()->first < other.ranks.begin()->first;
            });
  if (WantsServers(job)) {
    AddServers(job);
    if (!job.participants.back().server) return jobs_.AnnounceForming(job);
  }
  Agree(job);
  BeginStep(job, Phase::kOpening);
}

void LeaderSteps::AddServers(Job& job) {
  std::vector<NodeId> servers;
  for (const auto& [id, node] : jobs_.nodes()) {
    if (node.facts.server) servers.push_back(id);
  }
  std::sort(servers.begin(), servers.end(), [this](NodeId one, NodeId other) {
    return jobs_.nodes().at(one).facts.name < jobs_.nodes().at(other).facts.name;
  });
  for (const NodeId id : servers) {
    if (job.participants.size() >= transport::kNodesMax) return;
    const std::string& name = jobs_.nodes().at(id).facts.name;
    const bool known = std::any_of(
        job.participants.begin(), job.participants.end(),
        [&](const Participant& participant) { return jobs_.NameOf(participant) == name; });
    if (known) continue;
    job.participants.push_back({.node = id,
                                .number = kServerNumbers | ++servers_numbered_,
                                .ranks = {},
                                .server = true,
                                .announced = {}});
  }
}

void LeaderSteps::Agree(Job& job) {
  HR_CHECK(job.agreement.nodes.empty() && job.participants.size() <= transport::kNodesMax, job.name,
           job.participants.size());
  Agreement& agreement = job.agreement;
  agreement.job = job.name;
  agreement.world_size = job.world_size;
  agreement.epoch = job.epoch;
  agreement.key = jobs_.options().random_key();
  agreement.block_bytes = jobs_.options().block_bytes;
  agreement.verify = jobs_.options().verify;
  agreement.algorithm = jobs_.options().algorithm;
  if (!jobs_.options().in_process) agreement.leader = jobs_.options().node_name;
  for (Participant& participant : job.participants) {
    participant.place = agreement.nodes.size();
    AgreedNode node{.name = jobs_.NameOf(participant),
                    .ranks = {},
                    .addresses = jobs_.nodes().at(participant.node).facts.addresses,
                    .control = jobs_.nodes().at(participant.node).control};
    for (const auto& [rank, pid] : participant.ranks) node.ranks.push_back(rank);
    agreement.nodes.push_back(std::move(node));
    agreement.servers_count += participant.server ? 1 : 0;
  }
  HR_CHECK(agreement.servers_count < agreement.nodes.size() && agreement.key != 0, job.name,
           agreement.servers_count);
  agreement.nccl_lanes = agreement.servers_count == 0 ? jobs_.options().nccl_lanes : 0;
}

void LeaderSteps::BeginStep(Job& job, Phase phase) {
  HR_CHECK(static_cast<int>(phase) == static_cast<int>(job.phase) + 1, job.name,
           static_cast<int>(phase));
  job.phase = phase;
  std::uint32_t self = 0;
  for (Participant& participant : job.participants) {
    participant.answered = false;
    if (phase == Phase::kOpening) {
      jobs_.Send(participant,
                 OpenJob{.job = participant.number, .self = self++, .agreement = job.agreement});
    } else if (phase == Phase::kMeasuring) {
      jobs_.Send(participant, MeasureJob{.job = participant.number});
    } else if (phase == Phase::kStarting) {
      jobs_.Send(participant, StartJob{.job = participant.number,
                                       .costs = job.agreement.costs,
                                       .hash = HashOf(job.agreement)});
    }
  }
  if (phase != Phase::kRunning) jobs_.AnnounceForming(job);
}

// Whether that was an answer to the step that is under way.
bool LeaderSteps::Answer(const Job& job, Participant& participant, Phase phase) {
  if (job.phase != phase || participant.answered) return false;
  participant.answered = true;
  return true;
}

void LeaderSteps::Handle(Job& job, Participant& participant, const JobOpened& opened) {
  if (!Answer(job, participant, Phase::kOpening)) return;
  if (opened.code != Code::kOk) {
    jobs_.FailJob(
        job, opened.code,
        fmt::format("node {} cannot open its links: {}", jobs_.NameOf(participant), opened.cause));
    return;
  }
  Advance(job);
}

void LeaderSteps::Handle(Job& job, Participant& participant, const JobMeasured& measured) {
  if (!Answer(job, participant, Phase::kMeasuring)) return;
  if (measured.code != Code::kOk) {
    jobs_.FailJob(job, measured.code,
                  fmt::format("node {} cannot measure its links: {}", jobs_.NameOf(participant),
                              measured.cause));
    return;
  }
  if (measured.costs.size() != jobs_.options().lanes_count) {
    jobs_.FailJob(job, Code::kCorrupt,
                  fmt::format("node {} measured {} lanes of {}", jobs_.NameOf(participant),
                              measured.costs.size(), jobs_.options().lanes_count));
    return;
  }
  for (const transport::CostLine& cost : measured.costs) {
    if (IsCost(cost)) continue;
    return jobs_.FailJob(job, Code::kCorrupt,
                         fmt::format("node {} measured {} s and {} s a byte",
                                     jobs_.NameOf(participant), cost.startup_s, cost.s_per_byte));
  }
  // Bytes are never free.
  job.agreement.costs.resize(jobs_.options().lanes_count, {0, transport::kSecondsPerByteMin});
  MergeCosts(job.agreement.costs, measured.costs);
  Advance(job);
}

void LeaderSteps::Handle(Job& job, Participant& participant, const JobStarted& started) {
  if (!Answer(job, participant, Phase::kStarting)) return;
  const std::uint64_t agreed = HashOf(job.agreement);
  if (started.hash != agreed) {
    jobs_.FailJob(
        job, Code::kMismatch,
        fmt::format("node {} agreed on plan {:016x}, the leader on {:016x}: install the same "
                    "release on both",
                    jobs_.NameOf(participant), started.hash, agreed));
    return;
  }
  Advance(job);
}

void LeaderSteps::Advance(Job& job) {
  const bool all = std::all_of(job.participants.begin(), job.participants.end(),
                               [](const Participant& participant) { return participant.answered; });
  if (!all) return jobs_.AnnounceForming(job);
  const Phase next = job.phase == Phase::kOpening     ? Phase::kMeasuring
                     : job.phase == Phase::kMeasuring ? Phase::kStarting
                                                      : Phase::kRunning;
  if (next == Phase::kStarting) {
    plans_.Begin(job);
    if (job.agreement.verify != 0) job.verification.emplace(job.agreement);
  }
  BeginStep(job, next);
  // Where nobody of this node is in it, too.
  if (next == Phase::kRunning && !jobs_.options().in_process) {
    jobs_.directory().NoteRunning({job.name, job.uid}, job.agreement,
                                  {.node = jobs_.options().node_name, .address = {}});
  }
}

}  // namespace headrace::service
