// The plans of the jobs that a service leads: what nodes report for them, and what they are sent.
// Pure; see planning.h.
#pragma once

#include "service/cluster/led_jobs.h"

namespace headrace::service {

class LeaderPlans {
 public:
  // `jobs` outlives this.
  explicit LeaderPlans(LedJobs& jobs) : jobs_(jobs) {}

  // The job is about to start.
  void Begin(LedJob& job);
  // A server has no part in it, and before the job starts there is nothing to plan for: then the
  // message is none of an honest node. The job may be gone afterwards.
  void Handle(LedJob& job, LedJob::Part& part, const ReportLayout& layout);
  void Handle(LedJob& job, LedJob::Part& part, const ReportTimesSeen& times);
  void Handle(LedJob& job, LedJob::Part& part, const RequestPolicy& request);
  void SetCodec(LedJob& job, const CodecChoice& choice);
  void Handle(LedJob& job, LedJob::Part& part, const ReportPlanAck& ack);
  // The answer to a MakePlan. Of a job that is over it is ignored.
  void Handle(const PlanMade& message);

 private:
  using Job = LedJob;
  using Part = LedJob::Part;
  using Stage = LedJob::Stage;

  // Carries out what the job's planning wants; the job may be gone afterwards.
  void Advance(Job& job);
  void Execute(Job& job, const MakePlan& make);
  void Execute(Job& job, const PlanOffer& offer);
  void Execute(Job& job, const PlanSwitch& change);
  void Execute(Job& job, const PlanNote& note);
  void Execute(Job& job, const PlanFailure& failure);  // after which the job is gone

  LedJobs& jobs_;
};

}  // namespace headrace::service
