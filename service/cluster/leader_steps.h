// The leader's steps from a complete job to a running one: the nodes open the links, measure them,
// and start with the slowest measured costs and one hash. Runs on the thread of its owner. Pure.
#pragma once

#include "service/cluster/leader_plans.h"
#include "service/cluster/led_jobs.h"

namespace headrace::service {

class LeaderSteps {
 public:
  // Both must outlive this.
  LeaderSteps(LedJobs& jobs, LeaderPlans& plans) : jobs_(jobs), plans_(plans) {}

  void FormIfComplete(LedJob& job);
  // The nodes' answers to the current step. May erase the job.
  void Handle(LedJob& job, LedJob::Participant& participant, const JobOpened& opened);
  void Handle(LedJob& job, LedJob::Participant& participant, const JobMeasured& measured);
  void Handle(LedJob& job, LedJob::Participant& participant, const JobStarted& started);

 private:
  using Job = LedJob;
  using Participant = LedJob::Participant;
  using Phase = LedJob::Phase;

  bool WantsServers(const Job& job) const;
  void AddServers(Job& job);
  void Agree(Job& job);
  void BeginStep(Job& job, Phase phase);
  static bool Answer(const Job& job, Participant& participant, Phase phase);
  void Advance(Job& job);

  LedJobs& jobs_;
  LeaderPlans& plans_;
  std::uint32_t servers_numbered_ = 0;
};

}  // namespace headrace::service
