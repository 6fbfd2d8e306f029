// Tells those who led a job before where it lives now: whoever comes to it later may have been
// given one of their addresses. Done by the service that leads it, for as long as the job runs; a
// former leader that is away is told when it is back. Pure.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "service/cluster/followed_jobs.h"
#include "service/cluster/job_directory.h"

namespace headrace::service {

class FormerLeaders {
 public:
  // Outlives this; keeps the connections and sends what is to be said.
  explicit FormerLeaders(FollowedJobs& jobs) : jobs_(jobs) {}

  void OnLeaderUp(const std::string& leader);
  // Jobs may have begun or ended, or moved.
  void Refresh();

 private:
  using Told =
      std::pair<JobDirectory::JobKey, std::string>;  // and who it is, as leaders are called

  void Tell(const Told& told);

  FollowedJobs& jobs_;
  std::map<Told, bool> told_;  // whether it is meant still; its connection is kept
};

}  // namespace headrace::service
