// Setting changes for the jobs that this service leads, and reports of their nodes for users. Runs
// on the thread of its owner. Pure.
#pragma once

#include "service/cluster/leader_plans.h"
#include "service/cluster/led_jobs.h"

namespace headrace::service {

class LeaderSettings {
 public:
  // Both must outlive this.
  LeaderSettings(LedJobs& jobs, LeaderPlans& plans) : jobs_(jobs), plans_(plans) {}

  // Each of these may erase the job.
  void Handle(LedJob& job, LedJob::Participant& participant, const RequestSteering& request);
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportRankLate& late,
              TimeNs now);
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportBlockHashed& hashed);
  // IsDrain says whether a node's report means that its drain has ended; OnNodeDrained handles it.
  static bool IsDrain(const LedJob& job, const ReportJobFailed& failed);
  void OnNodeDrained(LedJob& job, LedJob::Participant& participant);

 private:
  using Job = LedJob;
  using Participant = LedJob::Participant;
  using Phase = LedJob::Phase;

  LedJobs& jobs_;
  LeaderPlans& plans_;
};

}  // namespace headrace::service
