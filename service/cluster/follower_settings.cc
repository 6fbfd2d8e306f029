#include "service/cluster/follower_settings.h"

#include <fmt/format.h>

namespace headrace::service {

std::vector<KnownJob> FollowerSettings::FindJobs(std::string_view name) const {
  std::vector<KnownJob> found;
  for (const auto& [number, job] : jobs_.all()) {
    if (job.id == JobId{} || job.forgotten || job.phase == Phase::kFailed) continue;
    if (job.name == name)
      found.push_back({.id = job.id,
                       .uid = job.uid,
                       .world_size = job.world_size,
                       .adaptive = job.layouts.adaptive()});
  }
  return found;
}

std::optional<KnownJob> FollowerSettings::FindJob(std::string_view name) const {
  const std::vector<KnownJob> found = FindJobs(name);
  return found.empty() ? std::nullopt : std::optional(found.back());
}

void FollowerSettings::SetPolicy(JobId id, plan::Policy policy) {
  Job* job = jobs_.Find(id);
  if (job == nullptr || job->phase == Phase::kFailed) return;
  job->requested_policy = policy;
  SendPending(*job);
}

// The leader ends a job in any phase, so a cancel goes to it at once; it is kept too, since the
// connection may break before it has received it.
void FollowerSettings::Steer(JobId id, const Steering& steering) {
  Job* job = jobs_.Find(id);
  if (job == nullptr || job->phase == Phase::kFailed) return;
  // Nobody else has to receive it. What is compressed is the leader's to say, also of its own jobs.
  if (FollowedJobs::IsLedHere(*job) && steering.kind != SteeringKind::kCompress) {
    jobs_.SendToDispatch({SteerJob{.job = id, .steering = steering}});
    if (steering.kind != SteeringKind::kCancel) return;
    jobs_.SendToLeader(*job, RequestSteering{.job = job->number, .steering = steering});
    return jobs_.FailJob(*job, Code::kCancelled, DescribeEnd(steering));
  }
  if (steering.kind == SteeringKind::kCancel) {
    if (job->phase == Phase::kReaching)
      return jobs_.FailJob(*job, Code::kCancelled, DescribeEnd(steering));
    if (job->phase != Phase::kRunning) {
      jobs_.SendToLeader(*job, RequestSteering{.job = job->number, .steering = steering});
    }
  }
  job->pending_steering.Keep(steering);
  SendPending(*job);
}

// The leader can take them once it has started the job.
void FollowerSettings::SendPending(Job& job) {
  if (job.phase != Phase::kRunning || job.id == JobId{} || job.forgotten) return;
  if (job.requested_policy) {
    jobs_.SendToLeader(
        job, RequestPolicy{.job = job.number, .policy = *std::exchange(job.requested_policy, {})});
  }
  for (Steering& steering : job.pending_steering.PopAll()) {
    jobs_.SendToLeader(job, RequestSteering{.job = job.number, .steering = std::move(steering)});
  }
}

void FollowerSettings::Handle(Job& job, const AnnounceSteering& steer) {
  if (job.phase != Phase::kRunning || job.id == JobId{} || job.forgotten) return;
  jobs_.SendToDispatch({SteerJob{.job = job.id, .steering = steer.steering}});
}

void FollowerSettings::Handle(const RankLate& message) {
  Job* job = jobs_.Find(message.job);
  if (job == nullptr || job->phase != Phase::kRunning) return;
  jobs_.SendToLeader(*job, ReportRankLate{.job = job->number, .text = message.text});
}

void FollowerSettings::Handle(const BlockHashed& message) {
  Job* job = jobs_.Find(message.job);
  if (job == nullptr || job->phase != Phase::kRunning) return;
  jobs_.SendToLeader(*job, ReportBlockHashed{.job = job->number, .hash = message.hash});
}

void FollowerSettings::Handle(Job& job, const AnnounceMembersWait& /*waits*/) {
  if (job.phase != Phase::kRunning || job.id == JobId{} || job.forgotten) return;
  jobs_.Add(MembersWait{.job = job.id});
}

// What goes beyond the allowance is no news: it is about the same job.
void FollowerSettings::Handle(Job& job, const AnnounceRankLate& late, TimeNs now) {
  if (job.phase != Phase::kRunning || job.id == JobId{} || job.forgotten) return;
  if (!job.late_events.TryAcquire(now)) return;
  jobs_.Add(ToWatch{Event{.code = Code::kTimeout,
                          .job = job.id,
                          .text = fmt::format("job {}: {}", job.name, late.text),
                          .uid = job.uid}});
}

}  // namespace headrace::service
