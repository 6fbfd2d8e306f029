// What people on a node ask of a job that this service leads, and what its nodes report for people.
// Pure.
#pragma once

#include "service/cluster/leader_plans.h"
#include "service/cluster/led_jobs.h"

namespace headrace::service {

class LeaderSettings {
 public:
  // Both outlive this.
  LeaderSettings(LedJobs& jobs, LeaderPlans& plans) : jobs_(jobs), plans_(plans) {}

  // The job may be gone after each of these.
  void Handle(LedJob& job, LedJob::Part& part, const RequestSteering& request);
  void Handle(LedJob& job, LedJob::Part& part, const ReportRankLate& late, TimeNs now);
  void Handle(LedJob& job, LedJob::Part& part, const ReportBlockHashed& hashed);
  // Whether a node has reported the end of a drain, and that it has.
  static bool IsDrain(const LedJob& job, const ReportJobFailed& failed);
  void OnNodeDrained(LedJob& job, LedJob::Part& part);

 private:
  using Job = LedJob;
  using Part = LedJob::Part;
  using Stage = LedJob::Stage;

  LedJobs& jobs_;
  LeaderPlans& plans_;
};

}  // namespace headrace::service
