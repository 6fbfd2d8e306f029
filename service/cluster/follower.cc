#include "service/cluster/follower.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::service {
namespace {

constexpr NodeId kHere = 1;  // the only node that the leader in here knows

// A service that meets no others needs no name; its jobs have one node all the same.
FollowerOptions Named(FollowerOptions options) {
  if (options.node_name.empty()) options.node_name = "here";
  return options;
}

}  // namespace

Follower::Follower(FollowerOptions options)
    : options_(Named(std::move(options))),
      home_({.program = {},
             .node_name = options_.node_name,
             .gpu_lanes = options_.gpu_lanes,
             .block_bytes = kBlockBytesMin,
             .policy = options_.policy,
             .peers = {},
             .random_key = [key = std::uint64_t{0}]() mutable { return ++key; },
             .next_number = options_.next_number,
             .in_process = true}) {
  home_.OnNodeUp(kHere, {.program = {}, .name = options_.node_name, .addresses = {}}, "");
}

Follower::Job* Follower::Find(JobId id) {
  const auto found = jobs_.find(id.value);
  return found != jobs_.end() && found->second.id == id ? &found->second : nullptr;
}

Status Follower::CheckAttach(std::string_view job, std::uint32_t rank) const {
  for (const auto& [number, known] : jobs_) {
    if (known.name != job || known.id == JobId{} || known.forgotten) continue;
    if (known.stage < Stage::kOpening || known.stage > Stage::kRunning) continue;
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
  const TimeNs patience_ns = identity.timeout_ms * kMillisecond;
  const auto [found, is_new] = jobs_.try_emplace(identity.job.value);
  Job& job = found->second;
  if (is_new) {
    job.id = identity.job;
    job.number = job.group = identity.job.value;
    job.name = identity.job_name;
    job.leader = identity.rendezvous;
    job.leader_from = identity.rendezvous_from;
    job.world_size = identity.world_size;
    job.uid = identity.uid;
    if (!IsLedHere(job)) job.architecture = identity.architecture;
    forming_.Begin(job.number,
                   identity.attached_ns + std::max<TimeNs>(options_.forming_ns, patience_ns));
    if (!IsLedHere(job)) {
      actions_.emplace_back(ReachLeader{job.leader});
      ReportForming(job, fmt::format("the service at {} is being reached", job.leader));
    }
  }
  job.ranks.insert_or_assign(
      identity.rank, AttachedRank{.pid = identity.pid, .after_epoch = identity.after_epoch});
  job.patience_ns = std::max(job.patience_ns, identity.attached_ns + patience_ns);
  if (job.stage == Stage::kJoined) {
    SendRankAttached(job, identity.rank);
  } else if (job.stage == Stage::kReaching &&
             (IsLedHere(job) || leaders_up_.contains(job.leader))) {
    Join(job);
  }
}

// Dispatch has ended what the others cannot do without it, and says nothing of it to anybody.
void Follower::OnRankEnded(JobId id, std::uint32_t rank) {
  Job* job = Find(id);
  if (job == nullptr || !IsLedHere(*job) || !job->gone.insert(rank).second) return;
  if (job->stage == Stage::kRunning)
    SendToLeader(*job, ReportRankLeft{.job = job->number, .rank = rank});
  if (job->gone.size() < job->ranks.size()) return;
  SendToLeader(*job, ForgetJob{job->number});
  Erase(*job);
}

void Follower::OnRankLost(JobId id, std::uint32_t rank, const std::string& cause, bool exited) {
  Job* job = Find(id);
  if (job == nullptr || job->stage == Stage::kFailed) return;
  if (job->stage != Stage::kReaching) {
    SendToLeader(
        *job, ReportRankLost{.job = job->number, .rank = rank, .cause = cause, .exited = exited});
    return;
  }
  Fail(*job, Code::kPeerLost,
       fmt::format("rank {} (pid {}) {}", rank, job->ranks[rank].pid, cause));
}

void Follower::Handle(const RankRefused& message) {
  const std::string cause =
      fmt::format("rank {} (pid {}) was refused: {}", message.rank, message.pid, message.cause);
  bool sent = false;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = (at++)->second;
    if (job.name != message.job || job.uid != message.uid || job.id == JobId{} || job.forgotten ||
        IsLedHere(job)) {
      continue;
    }
    // Beyond kJoined all ranks of the job have come, so that this one is none of it.
    sent = sent || (job.stage != Stage::kReaching && job.stage != Stage::kFailed);
    if (job.stage == Stage::kReaching) {
      Fail(job, message.code, cause);
    } else if (job.stage == Stage::kJoined) {
      SendToLeader(job, ReportJobFailed{.job = job.number, .code = message.code, .cause = cause});
    }
  }
  if (!sent) ReportRefused(message, cause);
}

// Ranks of other nodes may wait for it: this node joins their job, and ends it.
void Follower::ReportRefused(const RankRefused& message, const std::string& cause) {
  const auto sent = std::count_if(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second.refused.has_value();
  });
  if (sent >= kRefusedMax || message.leader.empty() || message.world_size == 0 ||
      message.world_size > transport::kMembersMax) {
    return;
  }
  // From above, where JobIds never come to.
  const std::uint32_t number = kServerNumbers - ++refused_reported_;
  Job& job = jobs_[number];
  job.number = job.group = number;
  job.name = message.job;
  job.leader = message.leader;
  job.world_size = message.world_size;
  job.uid = message.uid;
  job.architecture = message.architecture;
  job.forgotten = true;
  job.refused = ReportJobFailed{.job = number, .code = message.code, .cause = cause};
  actions_.emplace_back(ReachLeader{job.leader});
  if (leaders_up_.contains(job.leader)) Join(job);
}

void Follower::Handle(const JobFailed& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage == Stage::kFailed) return;
  if (job->stage == Stage::kReaching) return Fail(*job, message.code, message.cause);
  SendToLeader(*job,
               ReportJobFailed{.job = job->number, .code = message.code, .cause = message.cause});
  if (IsLedHere(*job)) Fail(*job, message.code, message.cause);
}

void Follower::Handle(const RankLeft& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage == Stage::kFailed) return;
  if (job->stage != Stage::kReaching) {
    SendToLeader(*job, ReportRankLeft{.job = job->number,
                                      .rank = message.rank,
                                      .posted = message.posted,
                                      .iterations = message.iterations});
    return;
  }
  Fail(*job, Code::kPeerLost,
       fmt::format("rank {} (pid {}) left the job before the service at {} was reached",
                   message.rank, job->ranks[message.rank].pid, job->leader));
}

void Follower::Handle(const JobEnded& message) {
  Job* job = Find(message.job);
  if (job == nullptr) return;
  job->forgotten = true;
  if (job->stage == Stage::kFailed || job->stage == Stage::kReaching) return Erase(*job);
  SendToLeader(*job, ForgetJob{job->number});
}

void Follower::OnLeaderUp(const std::string& leader) {
  leaders_up_.insert(leader);
  for (auto& [number, job] : jobs_) {
    if (job.leader == leader && job.stage == Stage::kReaching) Join(job);
  }
}

void Follower::Join(Job& job) {
  job.stage = Stage::kJoined;
  SendToLeader(job, JoinJob{.job = job.number,
                            .name = job.name,
                            .world_size = job.world_size,
                            .uid = job.uid,
                            .architecture = job.architecture});
  for (const auto& [rank, seat] : job.ranks) SendRankAttached(job, rank);
  if (job.refused) SendToLeader(job, *job.refused);
}

void Follower::SendRankAttached(const Job& job, std::uint32_t rank) {
  const AttachedRank& seat = job.ranks.at(rank);
  SendToLeader(
      job, ReportRankAttached{
               .job = job.number, .rank = rank, .pid = seat.pid, .after_epoch = seat.after_epoch});
}

void Follower::OnLeaderUnreachable(const std::string& leader, const std::string& cause,
                                   TimeNs now) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = (at++)->second;
    if (job.leader != leader || job.stage != Stage::kReaching) continue;
    if (now < job.patience_ns) {
      ReportForming(job, cause + Advice(job));
    } else {
      Fail(job, Code::kTimeout,
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
  const auto found = jobs_.find(message.job.value);
  if (found == jobs_.end() || found->second.id != message.job) {
    actions_.emplace_back(Answered{.token = message.token, .status = {}});
    return;
  }
  Job& job = found->second;
  if (job.stage >= Stage::kRunning || job.names_refusal || now >= message.until_ns) {
    AnswerForming(job, message.token);
  } else {
    job.asked.push_back(message);
  }
}

void Follower::AnswerForming(Job& job) {
  for (const AskForming& question : std::exchange(job.asked, {})) {
    AnswerForming(job, question.token);
  }
}

void Follower::AnswerForming(const Job& job, RequestToken token) {
  Status status;
  if (job.stage < Stage::kRunning) {
    status =
        Error(Code::kUnavailable, fmt::format("job {} has not begun: {}", job.name, job.shown));
  }
  actions_.emplace_back(Answered{.token = token, .status = std::move(status)});
}

TimeNs Follower::NextDeadline() const {
  TimeNs next = forming_.NextDeadline();
  for (const auto& [number, job] : jobs_) {
    for (const AskForming& question : job.asked) next = std::min(next, question.until_ns);
  }
  return next;
}

void Follower::OnLeaderRefused(const std::string& leader, const Error& error) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = (at++)->second;
    if (job.leader == leader && job.stage == Stage::kReaching) {
      Fail(job, error.code(), error.text());
    }
  }
}

void Follower::OnLeaderDown(const std::string& leader, const Error& error) {
  leaders_up_.erase(leader);
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = (at++)->second;
    if (job.leader != leader || job.stage == Stage::kFailed || job.stage == Stage::kReaching) {
      continue;
    }
    const Steering* cancel = job.pending_steering.Find(SteeringKind::kCancel);
    // Nothing was agreed yet: what was said can be said again to whoever answers there next.
    if (cancel != nullptr) {
      Fail(job, Code::kCancelled, DescribeEnd(*cancel));
    } else if (job.stage == Stage::kJoined && !job.forgotten) {
      job.stage = Stage::kReaching;
      ReportForming(job, error.text());
    } else {
      Fail(job, error.code(), error.text());
    }
  }
}

void Follower::Expire(TimeNs now) {
  for (auto& [number, job] : jobs_) {
    std::erase_if(job.asked, [this, &job = job, now](const AskForming& question) {
      if (now < question.until_ns) return false;
      AnswerForming(job, question.token);
      return true;
    });
  }
  for (const std::uint32_t number : forming_.TakeOverdue(now)) {
    const auto found = jobs_.find(number);
    if (found == jobs_.end() || found->second.stage >= Stage::kRunning) continue;
    Job& job = found->second;
    const std::string cause = DescribeOverdue(job.name, job.shown);
    if (job.stage != Stage::kReaching) {
      SendToLeader(job, ReportJobFailed{.job = job.number, .code = Code::kTimeout, .cause = cause});
    }
    Fail(job, Code::kTimeout, cause);
  }
}

void Follower::ReportForming(Job& job, const std::string& text) {
  if (job.id == JobId{} || job.forgotten || job.shown == text) return;
  job.shown = text;
  if (IsLedHere(job)) return;
  SendToDispatch({JobForming{.job = job.id, .waits_for = text}});
}

void Follower::Fail(Job& job, Code code, const std::string& cause) {
  // Dispatch is told first: a stage that a lane then ends, because its links are closed, has failed
  // for this cause already and not for the closing.
  const bool known = job.id != JobId{} && !job.forgotten;
  if (known) SendToDispatch({JobFailed{.job = job.id, .code = code, .cause = cause}});
  CloseLinks(job, cause);
  forming_.End(job.number);
  job.stage = Stage::kFailed;
  AnswerForming(job);
  if (known) {
    LeaveIfIdle(std::string(job.leader));
  } else {
    Erase(job);
  }
}

void Follower::CloseLinks(const Job& job, const std::string& cause) {
  if (job.stage < Stage::kOpening || job.stage > Stage::kRunning) return;
  for (std::size_t lane = 0; lane < LanesOf(job); ++lane) {
    actions_.emplace_back(ToLane{lane, CloseGroup{.group = job.group, .cause = cause}});
  }
}

void Follower::Erase(const Job& job) {
  const std::string leader = job.leader;
  forming_.End(job.number);
  for (const AskForming& question : job.asked) {
    actions_.emplace_back(Answered{.token = question.token, .status = {}});
  }
  jobs_.erase(job.number);
  LeaveIfIdle(leader);
}

// A server stays with its leader, job or not.
void Follower::LeaveIfIdle(const std::string& leader) {
  const bool needed = std::any_of(jobs_.begin(), jobs_.end(), [&leader](const auto& entry) {
    return entry.second.leader == leader && entry.second.stage != Stage::kFailed;
  });
  if (!needed && !options_.server && !leader.empty()) actions_.emplace_back(LeaveLeader{leader});
}

void Follower::SendToLeader(const Job& job, PeerMessage message) {
  if (IsLedHere(job)) return to_home_.push_back(std::move(message));
  actions_.emplace_back(ToLeader{.leader = job.leader, .message = std::move(message)});
}

std::vector<FollowerAction> Follower::TakeActions() {
  // What goes to the leader in here and comes from it, until neither has anything more to send.
  for (;;) {
    for (const PeerMessage& message : std::exchange(to_home_, {})) home_.Handle(kHere, message, 0);
    for (ToWatch& each : home_.DrainOutgoing()) actions_.emplace_back(std::move(each));
    const std::vector<ToNode> sent = home_.TakeMessages();
    if (sent.empty() && to_home_.empty()) break;
    for (const ToNode& each : sent) Handle("", each.message, 0);
  }
  return std::exchange(actions_, {});
}

void Follower::SendToDispatch(ToDispatch message) { actions_.emplace_back(std::move(message)); }

}  // namespace headrace::service
