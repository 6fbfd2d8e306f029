// Setting changes that users of a node request for its jobs, and reports about jobs for these
// users. Runs on the thread of its owner. Pure.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "service/cluster/followed_jobs.h"

namespace headrace::service {

class FollowerSettings {
 public:
  // `jobs` must outlive this.
  explicit FollowerSettings(FollowedJobs& jobs) : jobs_(jobs) {}

  std::vector<KnownJob> FindJobs(std::string_view name) const;
  std::optional<KnownJob> FindJob(std::string_view name) const;
  void SetPolicy(JobId job, plan::Policy policy);
  void Steer(JobId job, const Steering& steering);
  // Sends the changes that were requested before the job ran.
  void SendPending(FollowedJob& job);

  void Handle(const RankLate& message);
  void Handle(const BlockHashed& message);
  // From the leader.
  void Handle(FollowedJob& job, const AnnounceSteering& steer);
  void Handle(FollowedJob& job, const AnnounceRankLate& late, TimeNs now);
  void Handle(FollowedJob& job, const AnnounceMembersWait& waits);

 private:
  using Job = FollowedJob;
  using Phase = FollowedJob::Phase;

  FollowedJobs& jobs_;
};

}  // namespace headrace::service
