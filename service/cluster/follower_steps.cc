#include "service/cluster/follower_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// Groups of jobs that have no ranks here; below are JobIds.
constexpr std::uint32_t kServedGroups = 0x80000000U;

}  // namespace

std::size_t FollowerSteps::PlaceOf(std::uint8_t lane) const {
  const auto found = std::find(jobs_.options().lanes.begin(), jobs_.options().lanes.end(), lane);
  return static_cast<std::size_t>(found - jobs_.options().lanes.begin());
}

void FollowerSteps::AddServed(const std::string& leader, const OpenJob& open) {
  if (jobs_.all().contains(open.job)) return;
  if (jobs_.all().size() >= kJobsServedMax) {
    jobs_.Add(ToLeader{
        .leader = leader,
        .message = JobOpened{.job = open.job,
                             .code = Code::kExhausted,
                             .cause = fmt::format("the server sums for {} jobs, more are not "
                                                  "supported",
                                                  jobs_.all().size())}});
    return;
  }
  Job& job = jobs_.all()[open.job];
  job.number = open.job;
  job.group = kServedGroups | groups_served_++;
  job.name = open.agreement.job;
  job.leader = leader;
  job.world_size = open.agreement.world_size;
  job.phase = Phase::kJoined;
}

void FollowerSteps::Handle(Job& job, const AnnounceJobForming& waits) {
  if (job.phase >= Phase::kRunning) return;
  jobs_.ReportForming(job, waits.text);
  if (std::exchange(job.names_refusal, waits.refused) || !waits.refused) return;
  jobs_.AnswerForming(job);
}

std::vector<std::uint32_t> FollowerSteps::RanksOf(const Job& job) {
  std::vector<std::uint32_t> ranks;
  for (const auto& [rank, attached] : job.ranks) ranks.push_back(rank);
  return ranks;
}

Status FollowerSteps::CheckLanes(const Job& job, const Agreement& agreement) const {
  for (const AgreedNode& node : agreement.nodes) {
    if (node.addresses.size() != jobs_.LanesOf(job)) {
      return Error(Code::kCorrupt,
                   fmt::format("{} lanes of node {}, here are {}", node.addresses.size(), node.name,
                               jobs_.LanesOf(job)));
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
Status FollowerSteps::CheckAgreement(const Job& job, const OpenJob& open) const {
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
  if (const std::string& self = agreement.nodes[open.self].name;
      self != jobs_.options().node_name) {
    return wrong(
        fmt::format("node {} in the place of this one ({})", self, jobs_.options().node_name));
  }
  if (Status status = CheckLanes(job, agreement); !status) return status;
  if (!transport::IsAlgorithm(static_cast<std::uint8_t>(agreement.algorithm))) {
    return wrong(fmt::format("unknown algorithm {}", static_cast<unsigned>(agreement.algorithm)));
  }
  const bool served = agreement.servers_count != 0;
  if ((job.architecture == Architecture::kAllReduce && served) ||
      (job.architecture == Architecture::kParameterServer && !served)) {
    return wrong(fmt::format("{} servers, the ranks here asked for {}", agreement.servers_count,
                             Name(job.architecture)));
  }
  for (const auto& [rank, attached] : job.ranks) {
    if (agreement.epoch > attached.after_epoch) continue;
    return wrong(fmt::format("epoch {}, rank {} comes after epoch {}", agreement.epoch, rank,
                             attached.after_epoch));
  }
  const bool used = std::any_of(jobs_.all().begin(), jobs_.all().end(), [&](const auto& entry) {
    return &entry.second != &job &&
           FollowedJobs::IsLedHere(entry.second) == FollowedJobs::IsLedHere(job) &&
           entry.second.agreement.key == agreement.key;
  });
  if (agreement.key == 0) return wrong("key 0");
  if (used) return wrong(fmt::format("key {}, which another job has", agreement.key));
  return {};
}

void FollowerSteps::Handle(Job& job, const OpenJob& open) {
  if (job.phase != Phase::kJoined) return jobs_.OnProtocolError(job, "opened the job twice");
  if (const Status status = CheckAgreement(job, open); !status) {
    const Error error = status.error().Within(
        fmt::format("the leader at {} sent an invalid agreement of job {}", job.leader, job.name));
    jobs_.SendToLeader(job,
                       JobOpened{.job = job.number, .code = error.code(), .cause = error.text()});
    return jobs_.FailJob(job, error.code(), error.text());
  }
  HR_CHECK(job.lanes_answered == 0 && job.lanes_status && job.costs.empty(), job.name);
  job.phase = Phase::kOpening;
  job.self = open.self;
  job.agreement = open.agreement;
  // This node's own, so that the hash tells when the leader's is another.
  job.agreement.nccl_lanes = job.agreement.servers_count == 0 ? jobs_.options().nccl_lanes : 0;
  job.lanes_answered = 0;
  for (std::size_t lane = 0; lane < jobs_.LanesOf(job); ++lane) {
    jobs_.Add(ToLane{lane, OpenGroup{GroupOf(job.agreement, job.self, lane, job.group)}});
  }
  if (jobs_.LanesOf(job) == 0) LinksOpened(job);
}

void FollowerSteps::Handle(const GroupOpened& message) {
  Job* job = jobs_.FindGroup(message.group);
  if (job == nullptr || job->phase != Phase::kOpening) return;
  if (job->lanes_status && !message.status) job->lanes_status = message.status;
  HR_CHECK(job->lanes_answered < jobs_.LanesOf(*job), job->name, job->lanes_answered);
  if (++job->lanes_answered == jobs_.LanesOf(*job)) LinksOpened(*job);
}

void FollowerSteps::LinksOpened(Job& job) {
  HR_CHECK(job.phase == Phase::kOpening && job.lanes_answered == jobs_.LanesOf(job), job.name,
           job.lanes_answered);
  if (job.lanes_status) {
    job.phase = Phase::kMeasuring;
    jobs_.SendToLeader(job, JobOpened{.job = job.number});
  } else {
    const Error& error = job.lanes_status.error();
    jobs_.SendToLeader(job,
                       JobOpened{.job = job.number, .code = error.code(), .cause = error.text()});
  }
}

void FollowerSteps::Handle(Job& job, const MeasureJob& /*measure*/) {
  if (job.phase != Phase::kMeasuring || !job.costs.empty()) {
    return jobs_.OnProtocolError(job, "had the links measured before they were open, or twice");
  }
  job.lanes_answered = 0;
  job.costs.resize(jobs_.LanesOf(job));
  for (std::size_t lane = 0; lane < jobs_.LanesOf(job); ++lane) {
    jobs_.Add(ToLane{lane, MeasureGroup{job.group}});
  }
  if (jobs_.LanesOf(job) == 0) LinksMeasured(job);
}

void FollowerSteps::Handle(const GroupMeasured& message) {
  Job* job = jobs_.FindGroup(message.group);
  if (job == nullptr || job->phase != Phase::kMeasuring) return;
  if (job->costs.empty()) return;
  const std::size_t place = PlaceOf(message.lane);
  HR_CHECK(place < job->costs.size(), job->name, static_cast<int>(message.lane), place);
  if (message.cost) {
    job->costs[place] = *message.cost;
  } else if (job->lanes_status) {
    job->lanes_status = message.cost.error();
  }
  HR_CHECK(job->lanes_answered < jobs_.LanesOf(*job), job->name, job->lanes_answered);
  if (++job->lanes_answered == jobs_.LanesOf(*job)) LinksMeasured(*job);
}

// The leader ends the job on all nodes, and closes it here.
void FollowerSteps::Handle(const GroupFailed& message) {
  const Job* const job = jobs_.FindGroup(message.group);
  if (job == nullptr || job->phase == Phase::kFailed) return;
  jobs_.SendToLeader(
      *job, ReportJobFailed{.job = job->number, .code = message.code, .cause = message.cause});
}

void FollowerSteps::LinksMeasured(Job& job) {
  HR_CHECK(job.phase == Phase::kMeasuring && job.lanes_answered == jobs_.LanesOf(job), job.name,
           job.lanes_answered);
  if (job.lanes_status) {
    job.phase = Phase::kMeasured;
    jobs_.SendToLeader(job, JobMeasured{.job = job.number, .costs = job.costs});
  } else {
    const Error& error = job.lanes_status.error();
    jobs_.SendToLeader(job,
                       JobMeasured{.job = job.number, .code = error.code(), .cause = error.text()});
  }
}

void FollowerSteps::Handle(Job& job, const StartJob& start) {
  if (job.phase != Phase::kMeasured)
    return jobs_.OnProtocolError(job, "started the job out of turn");
  if (start.costs.size() != jobs_.LanesOf(job)) {
    return jobs_.OnProtocolError(job, fmt::format("agreed on the costs of {} lanes, here are {}",
                                                  start.costs.size(), jobs_.LanesOf(job)));
  }
  job.agreement.costs = start.costs;
  const JobNodes nodes = NodesOf(job.agreement, job.self);
  if (const Status status = CheckNodes(nodes, job.world_size, nodes.nodes[nodes.self].ranks);
      !status) {
    return jobs_.OnProtocolError(job, "agreed on " + status.error().text());
  }
  // The hash is that of what this node is about to use, not of what it was sent.
  const std::uint64_t hash =
      HashOf(job.agreement) ^ (FollowedJobs::IsLedHere(job) ? 0 : jobs_.options().hash_salt);
  if (hash == start.hash) {
    job.phase = Phase::kRunning;
    jobs_.forming().End(job.number);
    jobs_.AnswerForming(job);
    for (std::size_t lane = 0; lane < jobs_.LanesOf(job); ++lane) {
      jobs_.Add(ToLane{lane, SetCost{.group = job.group, .cost = job.agreement.costs[lane]}});
    }
    if (job.id != JobId{} && !FollowedJobs::IsLedHere(job)) {
      jobs_.SendToDispatch({JobFormed{.job = job.id, .nodes = nodes}});
      const bool own = job.agreement.leader == jobs_.options().node_name;
      jobs_.directory().NoteRunning(
          {job.name, job.uid}, job.agreement,
          {.node = job.agreement.leader,
           .address = own ? std::string() : jobs_.options().address_of(job.leader)});
      const JobPlaces* known = jobs_.directory().Find({job.name, job.uid});
      if (known != nullptr && known->places.size() > 1) {
        jobs_.Add(JobPlaced{.job = job.id, .places = PlacesText(known->places)});
      }
      jobs_.NoteStarted(job);
    }
  }
  jobs_.SendToLeader(job, JobStarted{.job = job.number, .hash = hash});
  for (const std::uint32_t rank : job.gone) {
    jobs_.SendToLeader(job, ReportRankLeft{.job = job.number, .rank = rank});
  }
  settings_.SendPending(job);
  plans_.SendLayoutIfComplete(job);
}

void FollowerSteps::Handle(Job& job, const AnnounceJobFailed& failure) {
  if (job.phase == Phase::kJoined && !FollowedJobs::IsLedHere(job))
    jobs_.Add(NoteRefusal{job.leader, failure.cause});
  jobs_.FailJob(job, failure.code, failure.cause);
}

void FollowerSteps::Handle(Job& job, const AnnounceRankLeft& gone) {
  if (job.phase != Phase::kRunning || job.id == JobId{} || job.forgotten) return;
  if (gone.rank >= job.world_size || job.ranks.contains(gone.rank)) {
    return jobs_.OnProtocolError(job,
                                 fmt::format("said that rank {} left on another node", gone.rank));
  }
  jobs_.SendToDispatch({RankLeft{.job = job.id,
                                 .rank = gone.rank,
                                 .posted = gone.posted,
                                 .iterations = gone.iterations,
                                 .cause = gone.cause}});
}

void FollowerSteps::Handle(Job& job, const CloseJob& /*close*/) {
  if (job.id != JobId{} && !job.forgotten) {
    return jobs_.FailJob(
        job, Code::kCorrupt,
        fmt::format("the leader at {} ended the job while it has ranks here", job.leader));
  }
  jobs_.CloseLinks(job, "the job has ended");
  jobs_.Erase(job);
}

}  // namespace headrace::service
