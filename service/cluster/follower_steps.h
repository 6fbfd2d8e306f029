// The steps to a running job, and from it to its end, as its leader takes them: this node's lanes
// open and measure the links, dispatch is sent what was agreed on. Everything that comes from a
// leader is checked here, since lanes and dispatch believe it. Pure.
#pragma once

#include <string>
#include <vector>

#include "service/cluster/followed_jobs.h"
#include "service/cluster/follower_plans.h"
#include "service/cluster/follower_settings.h"

namespace headrace::service {

class FollowerSteps {
 public:
  // All outlive this.
  FollowerSteps(FollowedJobs& jobs, FollowerPlans& plans, FollowerSettings& settings)
      : jobs_(jobs), plans_(plans), settings_(settings) {}

  // A server receives a job's first message when it is to open its links.
  void AddServed(const std::string& leader, const OpenJob& open);
  // Of the leader; the job may be gone afterwards.
  void Handle(FollowedJob& job, const AnnounceJobForming& waits);
  void Handle(FollowedJob& job, const OpenJob& open);
  void Handle(FollowedJob& job, const MeasureJob& measure);
  void Handle(FollowedJob& job, const StartJob& start);
  void Handle(FollowedJob& job, const AnnounceJobFailed& failure);
  void Handle(FollowedJob& job, const AnnounceRankLeft& gone);
  void Handle(FollowedJob& job, const CloseJob& close);
  // Of the lanes.
  void Handle(const GroupOpened& message);
  void Handle(const GroupMeasured& message);

 private:
  using Job = FollowedJob;
  using Stage = FollowedJob::Stage;

  std::size_t PlaceOf(std::uint8_t lane) const;
  static std::vector<std::uint32_t> RanksOf(const Job& job);
  Status CheckAgreement(const Job& job, const OpenJob& open) const;
  Status CheckLanes(const Job& job, const Agreement& agreement) const;
  // All lanes have answered.
  void LinksOpened(Job& job);
  void LinksMeasured(Job& job);

  FollowedJobs& jobs_;
  FollowerPlans& plans_;
  FollowerSettings& settings_;
  std::uint32_t groups_served_ = 0;
};

}  // namespace headrace::service
