// What a leader says to this node, and what its lanes answer.
#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "service/cluster/follower.h"

namespace headrace::service {
namespace {

// Groups of jobs that have no ranks here; below are JobIds.
constexpr std::uint32_t kServedGroups = 0x80000000U;

}  // namespace

Follower::Job* Follower::FindGroup(std::uint32_t group) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [group](const auto& entry) {
    return entry.second.group == group;
  });
  return found == jobs_.end() ? nullptr : &found->second;
}

std::size_t Follower::PlaceOf(std::uint8_t lane) const {
  const auto found = std::find(options_.lanes.begin(), options_.lanes.end(), lane);
  return static_cast<std::size_t>(found - options_.lanes.begin());
}

void Follower::Handle(const std::string& leader, const PeerMessage& message, TimeNs now) {
  const auto* open = std::get_if<OpenJob>(&message);
  if (open != nullptr && options_.server) AddServed(leader, *open);
  std::visit(
      [this, &leader, now](const auto& each) {
        constexpr bool kTimed = requires(Job & job) { Handle(job, each, now); };
        if constexpr (kTimed || requires(Job & job) { Handle(job, each); }) {
          const auto found = jobs_.find(each.job);
          if (found == jobs_.end() || found->second.leader != leader) return;
          if (found->second.stage == Stage::kFailed) return;
          if constexpr (kTimed) {
            Handle(found->second, each, now);
          } else {
            Handle(found->second, each);
          }
        }
      },
      message);
}

// A server hears of a job for the first time when it shall open its links.
void Follower::AddServed(const std::string& leader, const OpenJob& open) {
  if (jobs_.contains(open.job)) return;
  if (jobs_.size() >= kJobsServedMax) {
    actions_.emplace_back(ToLeader{
        .leader = leader,
        .message = JobOpened{.job = open.job,
                             .code = Code::kExhausted,
                             .cause = fmt::format("the server sums for {} jobs, more are not "
                                                  "supported",
                                                  jobs_.size())}});
    return;
  }
  Job& job = jobs_[open.job];
  job.number = open.job;
  job.group = kServedGroups | groups_served_++;
  job.name = open.agreement.job;
  job.leader = leader;
  job.world_size = open.agreement.world_size;
  job.stage = Stage::kJoined;
}

void Follower::Handle(Job& job, const AnnounceJobForming& waits) {
  if (job.stage >= Stage::kRunning) return;
  ReportForming(job, waits.text);
  if (std::exchange(job.names_refusal, waits.refused) || !waits.refused) return;
  AnswerForming(job);
}

std::vector<std::uint32_t> Follower::RanksOf(const Job& job) const {
  std::vector<std::uint32_t> ranks;
  for (const auto& [rank, seat] : job.ranks) ranks.push_back(rank);
  return ranks;
}

Status Follower::CheckLanes(const Job& job, const Agreement& agreement) const {
  for (const AgreedNode& node : agreement.nodes) {
    if (node.addresses.size() != LanesOf(job)) {
      return Error(Code::kCorrupt, fmt::format("{} lanes of node {}, here are {}",
                                               node.addresses.size(), node.name, LanesOf(job)));
    }
    for (const std::string& address : node.addresses) {
      if (!address.empty() && address.size() <= kLaneAddressMax) continue;
      return Error(Code::kCorrupt,
                   fmt::format("a lane of node {} at {} bytes", node.name, address.size()));
    }
  }
  return {};
}

// Everything, since lanes and dispatch believe what comes through here.
Status Follower::CheckAgreement(const Job& job, const OpenJob& open) const {
  const Agreement& agreement = open.agreement;
  const auto wrong = [](std::string what) { return Error(Code::kCorrupt, std::move(what)); };
  if (agreement.job != job.name || agreement.world_size != job.world_size) {
    return wrong(fmt::format("job {} of {} ranks, here it has {}", agreement.job,
                             agreement.world_size, job.world_size));
  }
  if (Status status = CheckNodes(NodesOf(agreement, open.self), agreement.world_size, RanksOf(job));
      !status) {
    return status;
  }
  if (const std::string& self = agreement.nodes[open.self].name; self != options_.node_name) {
    return wrong(fmt::format("node {} in the place of this one ({})", self, options_.node_name));
  }
  if (Status status = CheckLanes(job, agreement); !status) return status;
  if (!transport::IsAlgorithm(static_cast<std::uint8_t>(agreement.algorithm))) {
    return wrong(fmt::format("algorithm {}", static_cast<unsigned>(agreement.algorithm)));
  }
  const bool served = agreement.servers_count != 0;
  if ((job.architecture == kAllReduceName && served) ||
      (job.architecture == kServersName && !served)) {
    return wrong(fmt::format("{} servers, the ranks here asked for {}", agreement.servers_count,
                             job.architecture));
  }
  for (const auto& [rank, seat] : job.ranks) {
    if (agreement.epoch > seat.after_epoch) continue;
    return wrong(fmt::format("epoch {}, rank {} comes after epoch {}", agreement.epoch, rank,
                             seat.after_epoch));
  }
  const bool used = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return &entry.second != &job && IsLedHere(entry.second) == IsLedHere(job) &&
           entry.second.agreement.key == agreement.key;
  });
  if (agreement.key == 0 || used) return wrong("no key, or that of another job");
  return {};
}

void Follower::Handle(Job& job, const OpenJob& open) {
  if (job.stage != Stage::kJoined) return OnProtocolError(job, "opened the job twice");
  if (const Status status = CheckAgreement(job, open); !status) {
    const Error error = status.error().Within(fmt::format(
        "the leader at {} sent an agreement of job {} that is none", job.leader, job.name));
    SendToLeader(job, JobOpened{.job = job.number, .code = error.code(), .cause = error.text()});
    return Fail(job, error.code(), error.text());
  }
  job.stage = Stage::kOpening;
  job.self = open.self;
  job.agreement = open.agreement;
  // This node's own, so that the hash tells when the leader's is another.
  job.agreement.gpu_lanes = job.agreement.servers_count == 0 ? options_.gpu_lanes : 0;
  job.lanes_answered = 0;
  for (std::size_t lane = 0; lane < LanesOf(job); ++lane) {
    actions_.emplace_back(
        ToLane{lane, OpenGroup{GroupOf(job.agreement, job.self, lane, job.group)}});
  }
  if (LanesOf(job) == 0) LinksOpened(job);
}

void Follower::Handle(const GroupOpened& message) {
  Job* job = FindGroup(message.group);
  if (job == nullptr || job->stage != Stage::kOpening) return;
  if (job->lanes_status && !message.status) job->lanes_status = message.status;
  if (++job->lanes_answered == LanesOf(*job)) LinksOpened(*job);
}

void Follower::LinksOpened(Job& job) {
  if (job.lanes_status) {
    job.stage = Stage::kMeasuring;
    SendToLeader(job, JobOpened{.job = job.number});
  } else {
    const Error& error = job.lanes_status.error();
    SendToLeader(job, JobOpened{.job = job.number, .code = error.code(), .cause = error.text()});
  }
}

void Follower::Handle(Job& job, const MeasureJob& /*measure*/) {
  if (job.stage != Stage::kMeasuring || !job.costs.empty()) {
    return OnProtocolError(job, "had the links measured before they were open, or twice");
  }
  job.lanes_answered = 0;
  job.costs.resize(LanesOf(job));
  for (std::size_t lane = 0; lane < LanesOf(job); ++lane) {
    actions_.emplace_back(ToLane{lane, MeasureGroup{job.group}});
  }
  if (LanesOf(job) == 0) LinksMeasured(job);
}

void Follower::Handle(const GroupMeasured& message) {
  Job* job = FindGroup(message.group);
  if (job == nullptr || job->stage != Stage::kMeasuring) return;
  const std::size_t place = PlaceOf(message.lane);
  if (place >= job->costs.size()) return;
  if (message.cost) {
    job->costs[place] = *message.cost;
  } else if (job->lanes_status) {
    job->lanes_status = message.cost.error();
  }
  if (++job->lanes_answered == LanesOf(*job)) LinksMeasured(*job);
}

void Follower::LinksMeasured(Job& job) {
  if (job.lanes_status) {
    job.stage = Stage::kMeasured;
    SendToLeader(job, JobMeasured{.job = job.number, .costs = job.costs});
  } else {
    const Error& error = job.lanes_status.error();
    SendToLeader(job, JobMeasured{.job = job.number, .code = error.code(), .cause = error.text()});
  }
}

void Follower::Handle(Job& job, const StartJob& start) {
  if (job.stage != Stage::kMeasured) return OnProtocolError(job, "started the job out of turn");
  if (start.costs.size() != LanesOf(job)) {
    return OnProtocolError(job, fmt::format("agreed on the costs of {} lanes, here are {}",
                                            start.costs.size(), LanesOf(job)));
  }
  job.agreement.costs = start.costs;
  const JobNodes nodes = NodesOf(job.agreement, job.self);
  if (const Status status = CheckNodes(nodes, job.world_size, nodes.nodes[nodes.self].ranks);
      !status) {
    return OnProtocolError(job, "agreed on " + status.error().text());
  }
  // Of what this node is about to use, not of what it was sent.
  const std::uint64_t hash = HashOf(job.agreement) ^ (IsLedHere(job) ? 0 : options_.hash_salt);
  if (hash == start.hash) {
    job.stage = Stage::kRunning;
    forming_.End(job.number);
    AnswerForming(job);
    for (std::size_t lane = 0; lane < LanesOf(job); ++lane) {
      actions_.emplace_back(
          ToLane{lane, SetCost{.group = job.group, .cost = job.agreement.costs[lane]}});
    }
    if (job.id != JobId{} && !IsLedHere(job)) {
      SendToDispatch({JobFormed{.job = job.id, .nodes = nodes}});
    }
  }
  SendToLeader(job, JobStarted{.job = job.number, .hash = hash});
  for (const std::uint32_t rank : job.gone) {
    SendToLeader(job, ReportRankLeft{.job = job.number, .rank = rank});
  }
  SendPendingSettings(job);
  SendLayoutIfComplete(job);
}

void Follower::Handle(Job& job, const AnnounceJobFailed& failure) {
  if (job.stage == Stage::kJoined && !IsLedHere(job))
    actions_.emplace_back(NoteRefusal{job.leader, failure.cause});
  Fail(job, failure.code, failure.cause);
}

void Follower::Handle(Job& job, const AnnounceRankLeft& gone) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (gone.rank >= job.world_size || job.ranks.contains(gone.rank)) {
    return OnProtocolError(job, fmt::format("said that rank {} left on another node", gone.rank));
  }
  SendToDispatch({RankLeft{.job = job.id,
                           .rank = gone.rank,
                           .posted = gone.posted,
                           .iterations = gone.iterations,
                           .cause = gone.cause}});
}

void Follower::Handle(Job& job, const CloseJob& /*close*/) {
  if (job.id != JobId{} && !job.forgotten) {
    return Fail(job, Code::kCorrupt,
                fmt::format("the leader at {} ended the job while it has ranks here", job.leader));
  }
  CloseLinks(job, "the job has ended");
  Erase(job);
}

}  // namespace headrace::service
