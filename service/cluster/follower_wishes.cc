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

void Follower::Want(JobId id, plan::Policy policy) {
  Job* job = Find(id);
  if (job == nullptr || job->stage == Stage::kFailed) return;
  job->wished = policy;
  TellWishes(*job);
}

// The leader ends a job at any stage, so it is told of a cancel at once; it is kept too, since the
// connection may break before it has heard.
void Follower::Steer(JobId id, const Steering& steering) {
  Job* job = Find(id);
  if (job == nullptr || job->stage == Stage::kFailed) return;
  // Nobody else has to hear of it.
  if (IsLedHere(*job)) {
    TellDispatch({SteerJob{.job = id, .steering = steering}});
    if (steering.kind != SteeringKind::kCancel) return;
    Tell(*job, RequestSteering{.job = job->number, .steering = steering});
    return Fail(*job, Code::kCancelled, DescribeEnd(steering));
  }
  if (steering.kind == SteeringKind::kCancel) {
    if (job->stage == Stage::kReaching) return Fail(*job, Code::kCancelled, DescribeEnd(steering));
    if (job->stage != Stage::kRunning) {
      Tell(*job, RequestSteering{.job = job->number, .steering = steering});
    }
  }
  job->steerings.Keep(steering);
  TellWishes(*job);
}

// The leader can take them once it has started the job.
void Follower::TellWishes(Job& job) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (job.wished) {
    Tell(job, RequestPolicy{.job = job.number, .policy = *std::exchange(job.wished, {})});
  }
  for (Steering& steering : job.steerings.Take()) {
    Tell(job, RequestSteering{.job = job.number, .steering = std::move(steering)});
  }
}

void Follower::Take(Job& job, const AnnounceSteering& steer) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  TellDispatch({SteerJob{.job = job.id, .steering = steer.steering}});
}

void Follower::Take(const RankLate& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage != Stage::kRunning) return;
  Tell(*job, ReportRankLate{.job = job->number, .text = message.text});
}

void Follower::Take(const BlockHashed& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage != Stage::kRunning) return;
  Tell(*job, ReportBlockHashed{.job = job->number, .hash = message.hash});
}

// What goes beyond the allowance is no news: it is about the same job.
void Follower::Take(Job& job, const AnnounceRankLate& late, TimeNs now) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (!job.heard.Take(now)) return;
  actions_.emplace_back(ToWatch{Event{.code = Code::kTimeout,
                                      .job = job.id,
                                      .text = fmt::format("job {}: {}", job.name, late.text)}});
}

}  // namespace headrace::service
