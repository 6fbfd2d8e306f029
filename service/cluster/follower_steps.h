// A node's side of the steps of a job, which its leader directs: the lanes open and measure the
// links, dispatch gets the agreement, and at the end the links are closed. Everything that a leader
// sends is checked here, because lanes and dispatch rely on it. Runs on the thread of its owner.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "service/cluster/followed_jobs.h"
#include "service/cluster/follower_plans.h"
#include "service/cluster/follower_settings.h"

namespace headrace::service {

class FollowerSteps {
 public:
  // All must outlive this.
  FollowerSteps(FollowedJobs& jobs, FollowerPlans& plans, FollowerSettings& settings)
      : jobs_(jobs), plans_(plans), settings_(settings) {}

  // For a server, OpenJob is the first message of a job.
  void AddServed(const std::string& leader, const OpenJob& open);
  // From the leader. May erase the job.
  void Handle(FollowedJob& job, const AnnounceJobForming& waits);
  void Handle(FollowedJob& job, const OpenJob& open);
  void Handle(FollowedJob& job, const MeasureJob& measure);
  void Handle(FollowedJob& job, const StartJob& start);
  void Handle(FollowedJob& job, const AnnounceJobFailed& failure);
  void Handle(FollowedJob& job, const AnnounceRankLeft& gone);
  void Handle(FollowedJob& job, const CloseJob& close);
  // From the lanes.
  void Handle(const GroupOpened& message);
  void Handle(const GroupMeasured& message);
  void Handle(const GroupFailed& message);

 private:
  using Job = FollowedJob;
  using Phase = FollowedJob::Phase;

  std::size_t PlaceOf(std::uint8_t lane) const;
  static std::vector<std::uint32_t> RanksOf(const Job& job);
  Status CheckAgreement(const Job& job, const OpenJob& open) const;
  Status CheckLanes(const Job& job, const Agreement& agreement) const;
  // Call it when all lanes have answered.
  void LinksOpened(Job& job);
  void LinksMeasured(Job& job);

  FollowedJobs& jobs_;
  FollowerPlans& plans_;
  FollowerSettings& settings_;
  std::uint32_t groups_served_ = 0;
};

}  // namespace headrace::service
