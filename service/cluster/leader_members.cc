#include "service/cluster/leader_members.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "service/session/start_text.h"

namespace headrace::service {
// A job that has begun takes nobody in. While it ends, its next epoch may gather.
Result<LedJobs::JobNumber> LeaderMembers::Place(const JoinJob& join, TimeNs now) {
  std::size_t own = 0;  // jobs of that user
  for (const auto& [number, job] : jobs_.all()) {
    if (job.uid != join.uid) continue;
    ++own;
    if (job.name != join.name) continue;
    if (job.phase == Phase::kForming) return number;
    const bool ends =
        !job.ended.empty() ||
        std::any_of(job.participants.begin(), job.participants.end(),
                    [](const Participant& participant) { return participant.forgot; });
    if (ends) continue;
    return Error(Code::kAlreadyExists,
                 fmt::format("job {} goes on with all of its {} ranks since its epoch {}: give "
                             "this job another name",
                             job.name, job.world_size, job.epoch));
  }
  // Fair share: a user may have as many as it leaves free for others.
  if (own + jobs_.all().size() >= kJobsLedMax) {
    return Error(
        Code::kExhausted,
        fmt::format(
            "the service on node {} leads {} of at most {} jobs, {} of them of uid {}, which "
            "leaves none for that user: end one, or name another node as the "
            "rendezvous",
            jobs_.options().node_name, jobs_.all().size(), kJobsLedMax, own, join.uid));
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
  const LedJobs::JobNumber number =
      jobs_.options().next_number ? jobs_.options().next_number() : jobs_opened_;
  HR_CHECK(!jobs_.all().contains(number), number);
  jobs_.all().emplace(number, std::move(job));
  return number;
}

Status LeaderMembers::CheckJoin(NodeId node, const JoinJob& join, const Job& job) const {
  const auto joined =
      std::count_if(jobs_.all().begin(), jobs_.all().end(),
                    [node](const auto& entry) { return entry.second.HasNode(node); });
  if (static_cast<std::size_t>(joined) >= kJobsOfNodeMax && !jobs_.options().in_process) {
    return Error(Code::kExhausted, fmt::format("node {} takes part in {} jobs here, more are not "
                                               "supported",
                                               jobs_.nodes().at(node).facts.name, joined));
  }
  if (job.participants.empty()) return {};
  const std::string& first = jobs_.NameOf(job.participants.front());
  if (join.world_size != job.world_size) {
    return Error(Code::kMismatch,
                 fmt::format("the ranks of job {} differ in its size: on node {} they say {}, on "
                             "node {} {}: start all with the same WORLD_SIZE",
                             job.name, first, job.world_size, jobs_.nodes().at(node).facts.name,
                             join.world_size));
  }
  if (join.architecture != job.architecture) {
    return Error(Code::kMismatch,
                 fmt::format("the ranks of job {} differ in its architecture: on node {} they say "
                             "\"{}\", on node {} \"{}\": start all with the same "
                             "HEADRACE_ARCHITECTURE",
                             job.name, first, Name(job.architecture),
                             jobs_.nodes().at(node).facts.name, Name(join.architecture)));
  }
  // A node is in a job once: its ranks would count twice.
  for (const Participant& participant : job.participants) {
    if (jobs_.NameOf(participant) != jobs_.nodes().at(node).facts.name) continue;
    return Error(Code::kAlreadyExists, fmt::format("node {} has joined job {} already",
                                                   jobs_.NameOf(participant), job.name));
  }
  if (job.participants.size() >= transport::kNodesMax) {
    return Error(Code::kExhausted, fmt::format("job {} has ranks on {} nodes, more are not "
                                               "supported",
                                               job.name, job.participants.size()));
  }
  return {};
}

void LeaderMembers::OnJoinJob(NodeId node, const JoinJob& join, TimeNs now) {
  if (jobs_.nodes().at(node).facts.server || join.job >= kServerNumbers ||
      jobs_.Find(node, join.job) != jobs_.all().end()) {
    return;
  }
  const Participant participant{.node = node, .number = join.job, .ranks = {}, .announced = {}};
  const Result<LedJobs::JobNumber> number = Place(join, now);
  const Status status =
      number ? CheckJoin(node, join, jobs_.all().at(*number)) : Status(number.error());
  if (!status) {
    jobs_.Send(
        participant,
        AnnounceJobFailed{.job = join.job, .code = status.code(), .cause = status.error().text()});
    if (!number) return;
    Job& job = jobs_.all().at(*number);
    NoteRefused(node, status.error().text());
    if (job.participants.empty()) {
      jobs_.all().erase(*number);
    } else if (status.code() == Code::kMismatch) {
      // One user, who contradicts himself: the job cannot form.
      for (const Participant& other : job.participants)
        NoteRefused(other.node, status.error().text());
      jobs_.FailJob(job, status.code(), status.error().text());
    } else if (status.code() != Code::kAlreadyExists) {
      job.refused = fmt::format("node {} was refused: {}", jobs_.nodes().at(node).facts.name,
                                status.error().text());
      job.refused_node = jobs_.nodes().at(node).facts.name;
      jobs_.AnnounceForming(job);
    }
    return;
  }
  Job& job = jobs_.all().at(*number);
  job.participants.push_back(participant);
  jobs_.AnnounceForming(job);
}

Status LeaderMembers::CheckRankAttached(const Job& job, const Participant& participant,
                                        const ReportRankAttached& rank) const {
  const bool decided = rank.members_hash != 0;
  if (Status status = lost_.Check(job.name, job.uid, rank.after_epoch, decided); !status) {
    return status;
  }
  const Participant* first = nullptr;  // of those with ranks
  for (const Participant& other : job.participants) {
    if (first == nullptr && !other.ranks.empty()) first = &other;
    const auto taken = other.ranks.find(rank.rank);
    if (other.node == participant.node || taken == other.ranks.end()) continue;
    return Error(Code::kAlreadyExists,
                 fmt::format("rank {} of job {} is taken twice: by pid {} on node {} and by "
                             "pid {} on node {}",
                             rank.rank, job.name, taken->second, jobs_.NameOf(other), rank.pid,
                             jobs_.NameOf(participant)));
  }
  if (first != nullptr && job.members_hash != rank.members_hash) {
    return Error(Code::kPeerLost,
                 fmt::format("rank {} (pid {}) on node {} and {} follow different decisions on who "
                             "is left of job {}: they have to ask again",
                             rank.rank, rank.pid, jobs_.NameOf(participant),
                             jobs_.DescribeRank(*first, first->ranks.begin()->first), job.name));
  }
  if (first == nullptr || job.goes_on == (rank.after_epoch != 0)) return {};
  return Error(
      Code::kMismatch,
      fmt::format("of job {}, rank {} (pid {}) on node {} {} and {} {}: ranks that go on after "
                  "a reconnect and ranks that begin are never one job: end all of them "
                  "and begin anew",
                  job.name, rank.rank, rank.pid, jobs_.NameOf(participant),
                  DescribeStart(rank.after_epoch != 0),
                  jobs_.DescribeRank(*first, first->ranks.begin()->first),
                  DescribeStart(job.goes_on)));
}

void LeaderMembers::Handle(Job& job, Participant& participant, const ReportRankAttached& rank) {
  if (job.phase != Phase::kForming || rank.rank >= job.world_size) return;
  if (const Status status = CheckRankAttached(job, participant, rank); !status) {
    NoteRefused(participant.node, status.error().text());
    // Those that have come would wait for it in vain.
    return jobs_.FailJob(job, status.code(), status.error().text());
  }
  if (rank.after_epoch == 0) {
    lost_.Forget(job.name, job.uid);
    quorums_.Forget(job.name, job.uid);
  }
  job.goes_on = rank.after_epoch != 0;
  job.members_hash = rank.members_hash;
  job.epoch = std::max(job.epoch, rank.after_epoch + 1);
  participant.ranks.insert_or_assign(rank.rank, rank.pid);
  if (job.refused_node == jobs_.NameOf(participant)) job.refused.clear();
  refused_ranks_.Forget(job.name, job.uid, jobs_.NameOf(participant));
  jobs_.AnnounceForming(job);
  steps_.FormIfComplete(job);
}

void LeaderMembers::NoteRefused(NodeId node, const std::string& why) {
  const LedJobs::Node& other = jobs_.nodes().at(node);
  if (other.facts.name == jobs_.options().node_name) return;
  refused_nodes_.push_back({.name = other.facts.name, .address = other.address, .why = why});
}

void LeaderMembers::RemovePart(LedJobs::JobNumber number, NodeId node) {
  Job& job = jobs_.all().at(number);
  const auto removed = std::erase_if(job.participants, [node](const Participant& participant) {
    return participant.node == node;
  });
  HR_CHECK(removed == 1, job.name, node, removed);
  if (job.phase != Phase::kForming) return jobs_.CloseIfForgotten(job);
  if (job.participants.empty()) {
    jobs_.all().erase(number);
  } else {
    jobs_.AnnounceForming(job);
  }
}

void LeaderMembers::Handle(Job& job, Participant& participant, const ReportRankLost& lost) {
  const std::string cause =
      fmt::format("{} {}", jobs_.DescribeRank(participant, lost.rank), lost.cause);
  if (lost.exited) {
    lost_.Note(job.name, job.uid, {.epoch = job.epoch, .cause = cause});
    quorums_.OnEpochLost(job.name, job.uid, job.epoch);
  }
  jobs_.FailJob(job, Code::kPeerLost, cause);
}

void LeaderMembers::Handle(Job& job, Participant& participant, const ReportRankLeft& left) {
  if (!participant.ranks.contains(left.rank)) return;
  if (job.phase < Phase::kStarting) {
    jobs_.FailJob(job, Code::kPeerLost,
                  fmt::format("{} left the job before all of its nodes were linked",
                              jobs_.DescribeRank(participant, left.rank)));
    return;
  }
  if (!job.ended.insert(left.rank).second) return;
  HR_CHECK(job.planning != nullptr && job.ended.size() <= job.world_size, job.name,
           job.ended.size());
  job.planning->Stop();
  for (const Participant& other : job.participants) {
    if (other.node == participant.node || other.server) continue;
    jobs_.Send(other, AnnounceRankLeft{
                          .job = other.number,
                          .rank = left.rank,
                          .posted = left.posted,
                          .iterations = left.iterations,
                          .cause = jobs_.DescribeRank(participant, left.rank) + " left the job"});
  }
}

void LeaderMembers::Handle(Job& job, Participant& participant, const ReportJobFailed& failed,
                           TimeNs now) {
  if (settings_.IsDrain(job, failed)) return settings_.OnNodeDrained(job, participant);
  const std::string cause =
      participant.server ? failed.cause
                         : fmt::format("{} (on node {})", failed.cause, jobs_.NameOf(participant));
  if (job.phase == Phase::kForming && participant.ranks.empty()) {  // its rank was refused there
    NoteRefused(participant.node, cause);
    refused_ranks_.Note(
        {.job = job.name, .uid = job.uid, .node = jobs_.NameOf(participant), .cause = cause}, now);
  }
  jobs_.FailJob(job, failed.code, cause);
}

void LeaderMembers::Handle(Job& job, Participant& participant, const ForgetJob& /*forget*/) {
  if (job.phase < Phase::kStarting) {
    jobs_.FailJob(job, Code::kPeerLost,
                  fmt::format("the ranks on node {} are gone before all nodes were linked",
                              jobs_.NameOf(participant)));
    return;
  }
  participant.forgot = true;
  jobs_.CloseIfForgotten(job);
}

}  // namespace headrace::service
