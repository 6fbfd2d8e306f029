// What people on a node ask of its jobs and what they hear about them.
#include <fmt/format.h>

#include "service/cluster/follower.h"

namespace headrace::service {

std::vector<KnownJob> Follower::FindJobs(std::string_view name) const {
  std::vector<KnownJob> found;
  for (const auto& [number, job] : jobs_) {
    if (job.id == JobId{} || job.forgotten || job.stage == Stage::kFailed) continue;
    if (job.name == name) found.push_back({.id = job.id, .uid = job.uid});
  }
  return found;
}

std::optional<KnownJob> Follower::FindJob(std::string_view name) const {
  const std::vector<KnownJob> found = FindJobs(name);
  return found.empty() ? std::nullopt : std::optional(found.back());
}

void Follower::SetPolicy(JobId id, plan::Policy policy) {
  Job* job = Find(id);
  if (job == nullptr || job->stage == Stage::kFailed) return;
  job->requested_policy = policy;
  SendPendingSettings(*job);
}

// The leader ends a job at any stage, so a cancel goes to it at once; it is kept too, since the
// connection may break before it has heard.
void Follower::Steer(JobId id, const Steering& steering) {
  Job* job = Find(id);
  if (job == nullptr || job->stage == Stage::kFailed) return;
  // Nobody else has to hear of it.
  if (IsLedHere(*job)) {
    SendToDispatch({SteerJob{.job = id, .steering = steering}});
    if (steering.kind != SteeringKind::kCancel) return;
    SendToLeader(*job, RequestSteering{.job = job->number, .steering = steering});
    return Fail(*job, Code::kCancelled, DescribeEnd(steering));
  }
  if (steering.kind == SteeringKind::kCancel) {
    if (job->stage == Stage::kReaching) return Fail(*job, Code::kCancelled, DescribeEnd(steering));
    if (job->stage != Stage::kRunning) {
      SendToLeader(*job, RequestSteering{.job = job->number, .steering = steering});
    }
  }
  job->pending_steering.Keep(steering);
  SendPendingSettings(*job);
}

// The leader can take them once it has started the job.
void Follower::SendPendingSettings(Job& job) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (job.requested_policy) {
    SendToLeader(
        job, RequestPolicy{.job = job.number, .policy = *std::exchange(job.requested_policy, {})});
  }
  for (Steering& steering : job.pending_steering.Take()) {
    SendToLeader(job, RequestSteering{.job = job.number, .steering = std::move(steering)});
  }
}

void Follower::Handle(Job& job, const AnnounceSteering& steer) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  SendToDispatch({SteerJob{.job = job.id, .steering = steer.steering}});
}

void Follower::Handle(const RankLate& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage != Stage::kRunning) return;
  SendToLeader(*job, ReportRankLate{.job = job->number, .text = message.text});
}

void Follower::Handle(const BlockHashed& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage != Stage::kRunning) return;
  SendToLeader(*job, ReportBlockHashed{.job = job->number, .hash = message.hash});
}

// What goes beyond the allowance is no news: it is about the same job.
void Follower::Handle(Job& job, const AnnounceRankLate& late, TimeNs now) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (!job.late_events.TryAcquire(now)) return;
  actions_.emplace_back(ToWatch{Event{.code = Code::kTimeout,
                                      .job = job.id,
                                      .text = fmt::format("job {}: {}", job.name, late.text)}});
}

}  // namespace headrace::service
