// Sends the current places of a job to its former leaders, because ranks that join later may have
// the address of one of them. The leading service does so for as long as the job runs; a former
// leader that cannot be reached is told when it is back. Pure.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "service/cluster/followed_jobs.h"
#include "service/cluster/job_directory.h"

namespace headrace::service {

class FormerLeaders {
 public:
  // `jobs` must outlive this. It keeps the connections and sends the messages.
  explicit FormerLeaders(FollowedJobs& jobs) : jobs_(jobs) {}

  void OnLeaderUp(const std::string& leader);
  // Call it after jobs have begun, ended or moved.
  void Refresh();

 private:
  using Told =
      std::pair<JobDirectory::JobKey, std::string>;  // job, and the name of its former leader

  void SendPlaces(const Told& told);

  FollowedJobs& jobs_;
  std::map<Told, bool> told_;  // value: still a former leader, so its connection is kept
};

}  // namespace headrace::service
