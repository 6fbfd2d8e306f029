// Plans of the jobs that a service leads: takes the nodes' reports and sends the plans. See
// planning.h. Runs on the thread of its owner. Pure.
#pragma once

#include "service/cluster/led_jobs.h"
#include "service/cluster/requested_codecs.h"

namespace headrace::service {

class LeaderPlans {
 public:
  // `jobs` must outlive this.
  explicit LeaderPlans(LedJobs& jobs) : jobs_(jobs) {}

  // Call it right before the job starts.
  void Begin(LedJob& job);
  // From a server, or before the job has started, these violate the protocol. May erase the job.
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportLayout& layout);
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportTimesSeen& times);
  void Handle(LedJob& job, LedJob::Participant& participant, const RequestPolicy& request);
  // Applies to later epochs of the job, too.
  void SetCodec(LedJob& job, const CodecChoice& choice);
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportPlanAck& ack);
  // The answer to MakePlan. Ignored if the job has ended.
  void Handle(const PlanMade& message);

 private:
  using Job = LedJob;
  using Participant = LedJob::Participant;
  using Phase = LedJob::Phase;

  // Executes the actions of the job's planning. May erase the job.
  void Advance(Job& job);
  void Execute(Job& job, const MakePlan& make);
  void Execute(Job& job, const PlanOffer& offer);
  void Execute(Job& job, const PlanSwitch& change);
  void Execute(Job& job, const PlanNote& note);
  void Execute(Job& job, const PlanFailure& failure);  // erases the job

  LedJobs& jobs_;
  RequestedCodecs requested_codecs_;
};

}  // namespace headrace::service
