// A node's side of plans: sends layouts and times to the leaders, receives plans and passes them to
// dispatch. Runs on the thread of its owner. Pure.
#pragma once

#include <memory>
#include <optional>

#include "service/cluster/followed_jobs.h"

namespace headrace::service {

class FollowerPlans {
 public:
  // `jobs` must outlive this.
  explicit FollowerPlans(FollowedJobs& jobs) : jobs_(jobs) {}

  Status CheckLayout(JobId job, std::uint32_t rank, const Layout& layout,
                     std::optional<plan::Policy> policy) const;
  void OnLayoutSet(JobId job, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                   std::optional<plan::Policy> policy);
  void SendLayoutIfComplete(FollowedJob& job);

  void Handle(const TimesSeen& message);
  void Handle(const PlanAck& message);
  // From the leader. May erase the job.
  void Handle(FollowedJob& job, const PlanPiece& piece);
  void Handle(FollowedJob& job, const AnnouncePlanSwitch& change);

 private:
  using Job = FollowedJob;
  using Phase = FollowedJob::Phase;

  FollowedJobs& jobs_;
};

}  // namespace headrace::service
