// What a leader says to this node, and what its lanes answer.
#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "service/membership/follower.h"

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

void Follower::Take(const std::string& leader, const PeerMessage& message, TimeNs now) {
  const auto* open = std::get_if<OpenJob>(&message);
  if (open != nullptr && options_.server) AddServed(leader, *open);
  std::visit(
      [this, &leader, now](const auto& each) {
        constexpr bool kTimed = requires(Job & job) { Take(job, each, now); };
        if constexpr (kTimed || requires(Job & job) { Take(job, each); }) {
          const auto found = jobs_.find(each.job);
          if (found == jobs_.end() || found->second.leader != leader) return;
          if (found->second.stage == Stage::kFailed) return;
          if constexpr (kTimed) {
            Take(found->second, each, now);
          } else {
            Take(found->second, each);
          }
        }
      },
      message);
}

// A server hears of a job for the first time when it shall open its links.
void Follower::AddServed(const std::string& leader, const OpenJob& open) {
  const auto [found, is_new] = jobs_.try_emplace(open.job);
  if (!is_new) return;
  Job& job = found->second;
  job.number = open.job;
  job.group = kServedGroups | groups_served_++;
  job.name = open.agreement.job;
  job.leader = leader;
  job.world_size = open.agreement.world_size;
  job.stage = Stage::kJoined;
}

void Follower::Take(Job& job, const TellWaits& waits) {
  if (job.stage < Stage::kRunning) Show(job, waits.text);
}

Status Follower::CheckAgreement(const Job& job, const OpenJob& open) const {
  const Agreement& agreement = open.agreement;
  const auto corrupt = [&](const char* what) {
    return Error(Code::kCorrupt, fmt::format("the leader at {} sent a roster of job {} {}",
                                             job.leader, job.name, what));
  };
  if (agreement.nodes.empty() || agreement.nodes.size() > transport::kNodesMax) {
    return corrupt("without nodes, or with too many");
  }
  if (open.self >= agreement.nodes.size() || agreement.servers_count >= agreement.nodes.size()) {
    return corrupt("whose numbers go beyond it");
  }
  for (const AgreedNode& node : agreement.nodes) {
    if (node.addresses.size() != lanes_count()) return corrupt("with other lanes");
  }
  std::vector<std::uint32_t> ranks;
  for (const auto& [rank, pid] : job.ranks) ranks.push_back(rank);
  if (agreement.nodes[open.self].ranks != ranks) return corrupt("that does not have our ranks");
  if (agreement.job != job.name || agreement.world_size != job.world_size || agreement.key == 0) {
    return corrupt("that is another job's");
  }
  return {};
}

void Follower::Take(Job& job, const OpenJob& open) {
  if (job.stage != Stage::kJoined) return;
  if (const Status status = CheckAgreement(job, open); !status) {
    Tell(job, JobOpened{.job = job.number, .code = status.code(), .cause = status.error().text()});
    return;
  }
  job.stage = Stage::kOpening;
  job.self = open.self;
  job.agreement = open.agreement;
  // This node's own, so that the hash tells when the leader's is another.
  job.agreement.gpu_lanes = job.agreement.servers_count == 0 ? options_.gpu_lanes : 0;
  job.lanes_answered = 0;
  for (std::size_t lane = 0; lane < lanes_count(); ++lane) {
    actions_.emplace_back(
        ToLane{lane, OpenGroup{GroupOf(job.agreement, job.self, lane, job.group)}});
  }
}

void Follower::Take(const GroupOpened& message) {
  Job* job = FindGroup(message.group);
  if (job == nullptr || job->stage != Stage::kOpening) return;
  if (job->lanes_status && !message.status) job->lanes_status = message.status;
  if (++job->lanes_answered < lanes_count()) return;
  if (job->lanes_status) {
    job->stage = Stage::kMeasuring;
    Tell(*job, JobOpened{.job = job->number});
  } else {
    const Error& error = job->lanes_status.error();
    Tell(*job, JobOpened{.job = job->number, .code = error.code(), .cause = error.text()});
  }
}

void Follower::Take(Job& job, const MeasureJob& /*measure*/) {
  if (job.stage != Stage::kMeasuring || !job.costs.empty()) return;
  job.lanes_answered = 0;
  job.costs.resize(lanes_count());
  for (std::size_t lane = 0; lane < lanes_count(); ++lane) {
    actions_.emplace_back(ToLane{lane, MeasureGroup{job.group}});
  }
}

void Follower::Take(const GroupMeasured& message) {
  Job* job = FindGroup(message.group);
  if (job == nullptr || job->stage != Stage::kMeasuring) return;
  const std::size_t place = PlaceOf(message.lane);
  if (place >= job->costs.size()) return;
  if (message.cost) {
    job->costs[place] = *message.cost;
  } else if (job->lanes_status) {
    job->lanes_status = message.cost.error();
  }
  if (++job->lanes_answered < lanes_count()) return;
  if (job->lanes_status) {
    Tell(*job, JobMeasured{.job = job->number, .costs = job->costs});
  } else {
    const Error& error = job->lanes_status.error();
    Tell(*job, JobMeasured{.job = job->number, .code = error.code(), .cause = error.text()});
  }
}

void Follower::Take(Job& job, const StartJob& start) {
  if (job.stage != Stage::kMeasuring || start.costs.size() != lanes_count()) return;
  job.agreement.costs = start.costs;
  // Of what this node is about to use, not of what it was sent.
  const std::uint64_t hash = HashOf(job.agreement) ^ options_.hash_salt;
  if (hash == start.hash) {
    job.stage = Stage::kRunning;
    for (std::size_t lane = 0; lane < lanes_count(); ++lane) {
      actions_.emplace_back(
          ToLane{lane, SetCost{.group = job.group, .cost = job.agreement.costs[lane]}});
    }
    if (job.id != JobId{}) {
      TellDispatch({JobFormed{.job = job.id, .nodes = NodesOf(job.agreement, job.self)}});
    }
  }
  Tell(job, JobStarted{.job = job.number, .hash = hash});
  TellWishes(job);
  HandIfComplete(job);
}

void Follower::Take(Job& job, const FailJob& failure) { Fail(job, failure.code, failure.cause); }

void Follower::Take(Job& job, const RankGone& gone) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  TellDispatch({RankLeft{.job = job.id,
                         .rank = gone.rank,
                         .posted = gone.posted,
                         .iterations = gone.iterations,
                         .cause = gone.cause}});
}

void Follower::Take(Job& job, const CloseJob& /*close*/) {
  if (job.id != JobId{} && !job.forgotten) {
    return Fail(job, Code::kCorrupt,
                fmt::format("the leader at {} ended the job while it has ranks here", job.leader));
  }
  CloseLinks(job, "the job has ended");
  Erase(job);
}

}  // namespace headrace::service
