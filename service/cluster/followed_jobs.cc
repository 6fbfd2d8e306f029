#include "service/cluster/followed_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

FollowedJob* FollowedJobs::Find(JobId id) {
  const auto found = jobs_.find(id.value);
  return found != jobs_.end() && found->second.id == id ? &found->second : nullptr;
}

FollowedJob* FollowedJobs::FindGroup(std::uint32_t group) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [group](const auto& entry) {
    return entry.second.group == group;
  });
  return found == jobs_.end() ? nullptr : &found->second;
}

void FollowedJobs::ReportForming(FollowedJob& job, const std::string& text) {
  if (job.id == JobId{} || job.forgotten || job.shown == text) return;
  job.shown = text;
  if (IsLedHere(job)) return;
  SendToDispatch({JobForming{.job = job.id, .waits_for = text}});
}

void FollowedJobs::AnswerForming(FollowedJob& job) {
  for (const AskForming& question : std::exchange(job.asked, {})) {
    AnswerForming(job, question.token);
  }
}

void FollowedJobs::AnswerForming(const FollowedJob& job, RequestToken token) {
  Status status;
  if (job.phase < FollowedJob::Phase::kRunning) {
    status =
        Error(Code::kUnavailable, fmt::format("job {} has not begun: {}", job.name, job.shown));
  }
  actions_.emplace_back(Answered{.token = token, .status = std::move(status)});
}

void FollowedJobs::FailJob(FollowedJob& job, Code code, const std::string& cause) {
  HR_CHECK(job.phase != FollowedJob::Phase::kFailed, job.name);
  // Dispatch is sent it first: a stage that a lane then ends, because its links are closed, has
  // failed for this cause already and not for the closing.
  const bool known = job.id != JobId{} && !job.forgotten;
  if (known) SendToDispatch({JobFailed{.job = job.id, .code = code, .cause = cause}});
  CloseLinks(job, cause);
  forming_.End(job.number);
  const bool ran = job.phase == FollowedJob::Phase::kRunning;
  if (known && !IsLedHere(job) && ((ran && job.goes_on) || job.was_decided)) {
    lost_.push_back({.name = job.name, .uid = job.uid, .leader = job.leader});
  }
  job.phase = FollowedJob::Phase::kFailed;
  AnswerForming(job);
  if (known) {
    LeaveIfIdle(std::string(job.leader));
  } else {
    Erase(job);
  }
}

void FollowedJobs::CloseLinks(const FollowedJob& job, const std::string& cause) {
  if (job.phase < FollowedJob::Phase::kOpening || job.phase > FollowedJob::Phase::kRunning) return;
  for (std::size_t lane = 0; lane < LanesOf(job); ++lane) {
    actions_.emplace_back(ToLane{lane, CloseGroup{.group = job.group, .cause = cause}});
  }
}

void FollowedJobs::Erase(const FollowedJob& job) {
  const auto found = jobs_.find(job.number);
  HR_CHECK(found != jobs_.end() && &found->second == &job, job.name, job.number);
  const std::string leader = job.leader;
  forming_.End(job.number);
  for (const AskForming& question : job.asked) {
    actions_.emplace_back(Answered{.token = question.token, .status = {}});
  }
  jobs_.erase(job.number);
  LeaveIfIdle(leader);
}

// A server stays with its leader, job or not.
void FollowedJobs::LeaveIfIdle(const std::string& leader) {
  const bool needed =
      leaders_kept_.contains(leader) ||
      std::any_of(jobs_.begin(), jobs_.end(), [&leader](const auto& entry) {
        return entry.second.leader == leader && entry.second.phase != FollowedJob::Phase::kFailed;
      });
  if (!needed && !options_.server && !leader.empty()) actions_.emplace_back(LeaveLeader{leader});
}

void FollowedJobs::SendTo(const std::string& leader, PeerMessage message) {
  if (leader.empty()) return to_home_.push_back(std::move(message));
  actions_.emplace_back(ToLeader{.leader = leader, .message = std::move(message)});
}

void FollowedJobs::KeepLeader(const std::string& leader) {
  if (leader.empty()) return;
  leaders_kept_.insert(leader);
  actions_.emplace_back(ReachLeader{leader});
}

void FollowedJobs::ReleaseLeader(const std::string& leader) {
  const auto kept = leaders_kept_.find(leader);
  if (kept == leaders_kept_.end()) return;
  leaders_kept_.erase(kept);
  LeaveIfIdle(leader);
}

// An honest leader that is another release ends the job on every node; a false one may do nothing.
void FollowedJobs::OnProtocolError(FollowedJob& job, const std::string& what) {
  const std::string cause = fmt::format("the leader at {} {}", job.leader, what);
  SendToLeader(job, ReportJobFailed{.job = job.number, .code = Code::kCorrupt, .cause = cause});
  FailJob(job, Code::kCorrupt, cause);
}

}  // namespace headrace::service
