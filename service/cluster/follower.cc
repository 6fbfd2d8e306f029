#include "service/cluster/follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <variant>

#include "ipc/base/check.h"
#include "service/cluster/hand_over.h"

namespace headrace::service {
namespace {

constexpr NodeId kHere = 1;  // the only node that the leader in here knows
// Rounds of messages with it: a job takes one for each phase until it runs, and one for its
// first plan.
constexpr int kHomeRoundsMax = 16;

// A service that meets no others needs no name; its jobs have one node all the same.
FollowerOptions Named(FollowerOptions options) {
  if (options.node_name.empty()) options.node_name = "here";
  return options;
}

}  // namespace

Follower::Follower(FollowerOptions options, JobDirectory& directory)
    : jobs_(Named(std::move(options)), directory),
      plans_(jobs_),
      settings_(jobs_),
      steps_(jobs_, plans_, settings_),
      quorums_(jobs_),
      former_(jobs_),
      home_({.program = {},
             .node_name = jobs_.options().node_name,
             .nccl_lanes = jobs_.options().nccl_lanes,
             .block_bytes = kBlockBytesMin,
             .policy = jobs_.options().policy,
             .peers = {},
             .random_key = [key = std::uint64_t{0}]() mutable { return ++key; },
             .next_number = jobs_.options().next_number,
             .in_process = true},
            home_directory_) {
  home_.OnNodeUp(kHere, {.program = {}, .name = jobs_.options().node_name, .addresses = {}}, "");
}

Status Follower::CheckAttach(std::string_view job, std::uint32_t uid, std::uint32_t rank) const {
  for (const auto& [number, known] : jobs_.all()) {
    if (known.name != job || known.uid != uid || known.id == JobId{} || known.forgotten) continue;
    if (known.phase < Phase::kOpening || known.phase > Phase::kRunning) continue;
    for (const AgreedNode& node : known.agreement.nodes) {
      if (std::find(node.ranks.begin(), node.ranks.end(), rank) == node.ranks.end()) continue;
      if (known.ranks.contains(rank)) continue;
      return Error(Code::kAlreadyExists,
                   fmt::format("rank {} of job {} is on node {}: all ranks of the job are attached",
                               rank, job, node.name));
    }
  }
  return {};
}

void Follower::OnRankAttached(const SessionIdentity& identity) {
  quorums_.OnRankAttached(identity);
  const TimeNs patience_ns = identity.timeout_ms * kMillisecond;
  const auto [found, is_new] = jobs_.all().try_emplace(identity.job.value);
  Job& job = found->second;
  if (is_new) {
    job.id = identity.job;
    job.number = job.group = identity.job.value;
    job.name = identity.job_name;
    job.leader = identity.rendezvous;
    job.leader_from = identity.rendezvous_from;
    job.world_size = identity.world_size;
    job.uid = identity.uid;
    if (!FollowedJobs::IsLedHere(job)) job.architecture = identity.architecture;
    jobs_.forming().Begin(
        job.number,
        identity.attached_ns + std::max<TimeNs>(jobs_.options().forming_ns, patience_ns));
    if (!FollowedJobs::IsLedHere(job)) {
      jobs_.Add(ReachLeader{job.leader});
      jobs_.ReportForming(job, fmt::format("the service at {} is being reached", job.leader));
    }
  }
  job.ranks.insert_or_assign(identity.rank, AttachedRank{.pid = identity.pid,
                                                         .after_epoch = identity.after_epoch,
                                                         .members_hash = identity.members_hash});
  job.goes_on = job.goes_on || identity.can_reconnect;
  job.was_decided = job.was_decided || quorums_.WasDecided(identity);
  job.patience_ns = std::max(job.patience_ns, identity.attached_ns + patience_ns);
  if (identity.rank == 0 && identity.sends_class) {
    Steer(job.id, {.kind = SteeringKind::kSends,
                   .value = static_cast<std::uint64_t>(*identity.sends_class),
                   .uid = identity.uid});
  }
  if (identity.rank == 0 && identity.slow_bound.seconds != 0) {
    Steer(job.id, {.kind = SteeringKind::kSlowBound,
                   .value = identity.slow_bound.Value(),
                   .uid = identity.uid});
  }
  WarnOfHalves(identity);
  if (job.phase == Phase::kJoined) {
    SendRankAttached(job, identity.rank);
  } else if (job.phase == Phase::kReaching && jobs_.IsUp(job.leader)) {
    Join(job);
  }
}

void Follower::WarnOfHalves(const SessionIdentity& identity) {
  const bool begins = identity.rank == 0 && identity.after_epoch == 0;
  const std::uint64_t both = 2 * std::uint64_t{identity.min_world};
  if (!begins || identity.rendezvous.empty() || both == 0 || both > identity.world_size) return;
  jobs_.Add(ToWatch{Event{
      .code = Code::kOk,
      .job = identity.job,
      .text = fmt::format("job {} may go on with {} of {} ranks: two halves that cannot reach "
                          "each other would both go on, each by itself; a minimum world size of {} "
                          "or more (HEADRACE_SHRINK) keeps one of them from it",
                          identity.job_name, identity.min_world, identity.world_size,
                          identity.world_size / 2 + 1),
      .uid = identity.uid}});
}

// Dispatch has ended what the others cannot do without it, and says nothing of it to anybody.
void Follower::OnRankEnded(JobId id, std::uint32_t rank) {
  Job* job = jobs_.Find(id);
  if (job == nullptr || !FollowedJobs::IsLedHere(*job) || !job->gone.insert(rank).second) return;
  if (job->phase == Phase::kRunning)
    jobs_.SendToLeader(*job, ReportRankLeft{.job = job->number, .rank = rank});
  if (job->gone.size() < job->ranks.size()) return;
  jobs_.SendToLeader(*job, ForgetJob{job->number});
  jobs_.Erase(*job);
}

void Follower::OnRankLost(JobId id, std::uint32_t rank, const std::string& cause, bool exited) {
  Job* job = jobs_.Find(id);
  if (job == nullptr || job->phase == Phase::kFailed) return;
  if (job->phase != Phase::kReaching) {
    jobs_.SendToLeader(
        *job, ReportRankLost{.job = job->number, .rank = rank, .cause = cause, .exited = exited});
    return;
  }
  jobs_.FailJob(*job, Code::kPeerLost,
                fmt::format("rank {} (pid {}) {}", rank, job->ranks[rank].pid, cause));
}

void Follower::Handle(const RankRefused& message) {
  const std::string cause =
      fmt::format("rank {} (pid {}) was refused: {}", message.rank, message.pid, message.cause);
  bool sent = false;
  for (auto at = jobs_.all().begin(); at != jobs_.all().end();) {
    Job& job = (at++)->second;
    if (job.name != message.job || job.uid != message.uid || job.id == JobId{} || job.forgotten ||
        FollowedJobs::IsLedHere(job)) {
      continue;
    }
    // Beyond kJoined all ranks of the job have come, so that this one is none of it.
    sent = sent || (job.phase != Phase::kReaching && job.phase != Phase::kFailed);
    if (job.phase == Phase::kReaching) {
      jobs_.FailJob(job, message.code, cause);
    } else if (job.phase == Phase::kJoined) {
      jobs_.SendToLeader(job,
                         ReportJobFailed{.job = job.number, .code = message.code, .cause = cause});
    }
  }
  if (!sent) ReportRefused(message, cause);
}

// Ranks of other nodes may wait for it: this node joins their job, and ends it.
void Follower::ReportRefused(const RankRefused& message, const std::string& cause) {
  std::ptrdiff_t sent = 0;  // a report of the same user counts twice
  for (const auto& [number, job] : jobs_.all()) {
    if (job.refused) sent += job.uid == message.uid ? 2 : 1;
  }
  if (sent >= kRefusedMax || message.leader.empty() || message.world_size == 0 ||
      message.world_size > transport::kMembersMax) {
    return;
  }
  // Counted down from the largest number, which JobIds never reach.
  const std::uint32_t number = kServerNumbers - ++refused_reported_;
  Job& job = jobs_.all()[number];
  job.number = job.group = number;
  job.name = message.job;
  job.leader = message.leader;
  job.world_size = message.world_size;
  job.uid = message.uid;
  job.architecture = message.architecture;
  job.forgotten = true;
  job.refused = ReportJobFailed{.job = number, .code = message.code, .cause = cause};
  jobs_.Add(ReachLeader{job.leader});
  if (jobs_.IsUp(job.leader)) Join(job);
}

void Follower::Handle(const JobFailed& message) {
  Job* job = jobs_.Find(message.job);
  if (job == nullptr || job->phase == Phase::kFailed) return;
  if (job->phase == Phase::kReaching) return jobs_.FailJob(*job, message.code, message.cause);
  jobs_.SendToLeader(
      *job, ReportJobFailed{.job = job->number, .code = message.code, .cause = message.cause});
  if (FollowedJobs::IsLedHere(*job)) jobs_.FailJob(*job, message.code, message.cause);
}

void Follower::Handle(const RankLeft& message) {
  Job* job = jobs_.Find(message.job);
  if (job == nullptr || job->phase == Phase::kFailed) return;
  if (job->phase != Phase::kReaching) {
    jobs_.SendToLeader(*job, ReportRankLeft{.job = job->number,
                                            .rank = message.rank,
                                            .posted = message.posted,
                                            .iterations = message.iterations});
    return;
  }
  jobs_.FailJob(*job, Code::kPeerLost,
                fmt::format("rank {} (pid {}) left the job before the service at {} was reached",
                            message.rank, job->ranks[message.rank].pid, job->leader));
}

void Follower::Handle(const JobEnded& message) {
  Job* job = jobs_.Find(message.job);
  if (job == nullptr) return;
  job->forgotten = true;
  if (job->phase == Phase::kFailed || job->phase == Phase::kReaching) return jobs_.Erase(*job);
  jobs_.SendToLeader(*job, ForgetJob{job->number});
}

void Follower::OnLeaderUp(const std::string& leader) {
  jobs_.SetUp(leader, true);
  quorums_.OnLeaderUp(leader);
  former_.OnLeaderUp(leader);
  for (auto& [number, job] : jobs_.all()) {
    if (job.leader == leader && job.phase == Phase::kReaching) Join(job);
  }
}

void Follower::Join(Job& job) {
  HR_CHECK(job.phase == Phase::kReaching, job.name, static_cast<int>(job.phase));
  job.phase = Phase::kJoined;
  jobs_.SendToLeader(job, JoinJob{.job = job.number,
                                  .name = job.name,
                                  .world_size = job.world_size,
                                  .uid = job.uid,
                                  .architecture = job.architecture});
  for (const auto& [rank, attached] : job.ranks) SendRankAttached(job, rank);
  if (job.refused) jobs_.SendToLeader(job, *job.refused);
}

void Follower::SendRankAttached(const Job& job, std::uint32_t rank) {
  const AttachedRank& attached = job.ranks.at(rank);
  jobs_.SendToLeader(job, ReportRankAttached{.job = job.number,
                                             .rank = rank,
                                             .pid = attached.pid,
                                             .after_epoch = attached.after_epoch,
                                             .members_hash = attached.members_hash});
}

void Follower::OnLeaderUnreachable(const std::string& leader, const std::string& cause,
                                   TimeNs now) {
  quorums_.OnLeaderUnreachable(leader, cause);
  for (auto at = jobs_.all().begin(); at != jobs_.all().end();) {
    Job& job = (at++)->second;
    if (job.leader != leader || job.phase != Phase::kReaching) continue;
    if (job.was_decided) {
      jobs_.FailJob(job, Code::kPeerLost, cause);
    } else if (now < job.patience_ns) {
      jobs_.ReportForming(job, cause + Advice(job));
    } else {
      jobs_.FailJob(job, Code::kTimeout,
                    cause + ": gave up after the time that the ranks allow" + Advice(job));
    }
  }
}

std::string Follower::Advice(const Job& job) {
  return fmt::format(
      "; the address is from {}: see that headraced runs there and can be reached, or set "
      "HEADRACE_RENDEZVOUS to host:port of the service of one of the job's nodes",
      job.leader_from.empty() ? "its ranks" : job.leader_from);
}

void Follower::Handle(const AskForming& message, TimeNs now) {
  const auto found = jobs_.all().find(message.job.value);
  if (found == jobs_.all().end() || found->second.id != message.job) {
    jobs_.Add(Answered{.token = message.token, .status = {}});
    return;
  }
  Job& job = found->second;
  if (job.phase >= Phase::kRunning || job.names_refusal || now >= message.until_ns) {
    jobs_.AnswerForming(job, message.token);
  } else {
    job.asked.push_back(message);
  }
}

void Follower::Handle(const AskQuorum& message, TimeNs now) {
  now_ = now;
  quorums_.Handle(message);
}

TimeNs Follower::NextDeadline() const {
  TimeNs next =
      std::min({jobs_.forming().NextDeadline(), quorums_.NextDeadline(), home_.NextDeadline()});
  for (const auto& [number, job] : jobs_.all()) {
    for (const AskForming& question : job.asked) next = std::min(next, question.until_ns);
  }
  return next;
}

void Follower::OnLeaderRefused(const std::string& leader, const Error& error) {
  quorums_.OnLeaderRefused(leader, error);
  for (auto at = jobs_.all().begin(); at != jobs_.all().end();) {
    Job& job = (at++)->second;
    if (job.leader == leader && job.phase == Phase::kReaching) {
      jobs_.FailJob(job, error.code(), error.text());
    }
  }
}

void Follower::OnLeaderDown(const std::string& leader, const Error& error) {
  jobs_.SetUp(leader, false);
  quorums_.OnLeaderDown(leader, error.text());
  for (auto at = jobs_.all().begin(); at != jobs_.all().end();) {
    Job& job = (at++)->second;
    if (job.leader != leader || job.phase == Phase::kFailed || job.phase == Phase::kReaching) {
      continue;
    }
    const Steering* cancel = job.pending_steering.Find(SteeringKind::kCancel);
    // Nothing was agreed yet: what was said can be said again to whoever answers there next.
    if (cancel != nullptr) {
      jobs_.FailJob(job, Code::kCancelled, DescribeEnd(*cancel));
    } else if (job.phase == Phase::kJoined && !job.forgotten && !job.was_decided) {
      job.phase = Phase::kReaching;
      jobs_.ReportForming(job, error.text());
    } else {
      jobs_.FailJob(job, error.code(), error.text());
    }
  }
}

void Follower::Expire(TimeNs now) {
  now_ = now;
  home_.Expire(now);
  quorums_.Expire(now);
  for (auto& [number, job] : jobs_.all()) {
    std::erase_if(job.asked, [this, &job = job, now](const AskForming& question) {
      if (now < question.until_ns) return false;
      jobs_.AnswerForming(job, question.token);
      return true;
    });
  }
  for (const std::uint32_t number : jobs_.forming().PopOverdue(now)) {
    const auto found = jobs_.all().find(number);
    if (found == jobs_.all().end() || found->second.phase >= Phase::kRunning) continue;
    Job& job = found->second;
    const std::string cause = DescribeOverdue(job.name, job.shown);
    if (job.phase != Phase::kReaching) {
      jobs_.SendToLeader(
          job, ReportJobFailed{.job = job.number, .code = Code::kTimeout, .cause = cause});
    }
    jobs_.FailJob(job, Code::kTimeout, cause);
  }
}

void Follower::Handle(const std::string& leader, const PeerMessage& message, TimeNs now) {
  const auto* open = std::get_if<OpenJob>(&message);
  if (open != nullptr && jobs_.options().server) steps_.AddServed(leader, *open);
  std::visit(
      [this, &leader, now]<typename Message>(const Message& each) {
        if constexpr (Handles<FollowedQuorums, const std::string, const Message>) {
          quorums_.Handle(leader, each);
        } else if constexpr (kIsOneOf<Message, MessageOfLeader>) {
          HandOfJob(leader, each, now);
        }
      },
      message);
}

template <typename Message>
void Follower::HandOfJob(const std::string& leader, const Message& message, TimeNs now) {
  const auto found = jobs_.all().find(message.job);
  if (found == jobs_.all().end() || found->second.leader != leader) return;
  if (found->second.phase == Phase::kFailed) return;
  HandOver(std::tie(steps_, plans_, settings_), now, found->second, message);
}

std::vector<FollowerAction> Follower::DrainActions() {
  // What goes to the leader in here and comes from it, until neither has anything more to send.
  for (int rounds = 1;; ++rounds) {
    HR_CHECK(rounds <= kHomeRoundsMax, rounds, jobs_.all().size());
    for (const PeerMessage& message : jobs_.DrainToHome()) home_.Handle(kHere, message, now_);
    for (ToWatch& each : home_.DrainOutgoing()) jobs_.Add(std::move(each));
    const std::vector<ToNode> sent = home_.DrainMessages();
    if (sent.empty() && !jobs_.HasToHome()) break;
    for (const ToNode& each : sent) Handle("", each.message, 0);
  }
  for (const LostJob& lost : jobs_.DrainLost()) quorums_.OnJobLost(lost);
  for (const JobDirectory::JobKey& job : jobs_.DrainStarted()) quorums_.OnJobRunning(job);
  quorums_.RefreshPlaces();
  former_.Refresh();
  return jobs_.DrainActions();
}

}  // namespace headrace::service
