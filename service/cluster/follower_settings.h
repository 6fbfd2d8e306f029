// What people on a node ask of its jobs, and what is reported to them about these. Pure.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "service/cluster/followed_jobs.h"

namespace headrace::service {

class FollowerSettings {
 public:
  // `jobs` outlives this.
  explicit FollowerSettings(FollowedJobs& jobs) : jobs_(jobs) {}

  std::vector<KnownJob> FindJobs(std::string_view name) const;
  std::optional<KnownJob> FindJob(std::string_view name) const;
  void SetPolicy(JobId job, plan::Policy policy);
  void Steer(JobId job, const Steering& steering);
  // What was asked before the job ran.
  void SendPending(FollowedJob& job);

  void Handle(const RankLate& message);
  void Handle(const BlockHashed& message);
  // Of the leader.
  void Handle(FollowedJob& job, const AnnounceSteering& steer);
  void Handle(FollowedJob& job, const AnnounceRankLate& late, TimeNs now);
  void Handle(FollowedJob& job, const AnnounceMembersWait& waits);

 private:
  using Job = FollowedJob;
  using Stage = FollowedJob::Stage;

  FollowedJobs& jobs_;
};

}  // namespace headrace::service
