// Nodes and ranks of the jobs that a service leads: nodes join, ranks attach, leave or are lost. If
// a rank contradicts earlier ones, the job fails for all. Runs on the thread of its owner. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "service/cluster/leader_settings.h"
#include "service/cluster/leader_steps.h"
#include "service/cluster/led_jobs.h"
#include "service/cluster/led_quorums.h"
#include "service/cluster/lost_epochs.h"
#include "service/cluster/refused_ranks.h"

namespace headrace::service {

// A node whose ranks were refused by a job, or that took part in it.
struct RefusedNode {
  std::string name;
  std::string address;
  std::string why;
};

class LeaderMembers {
 public:
  // All must outlive this.
  LeaderMembers(LedJobs& jobs, LeaderSteps& steps, LeaderSettings& settings, LedQuorums& quorums)
      : jobs_(jobs), steps_(steps), settings_(settings), quorums_(quorums) {}

  void OnJoinJob(NodeId node, const JoinJob& join, TimeNs now);
  // Each of these may erase the job.
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportRankAttached& rank);
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportRankLost& lost);
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportRankLeft& left);
  void Handle(LedJob& job, LedJob::Participant& participant, const ReportJobFailed& failed,
              TimeNs now);
  void Handle(LedJob& job, LedJob::Participant& participant, const ForgetJob& forget);
  // The node no longer takes part in the job.
  void RemovePart(LedJobs::JobNumber number, NodeId node);

  // The names of the other nodes, for texts.
  std::vector<RefusedNode> DrainRefused() { return std::exchange(refused_nodes_, {}); }

 private:
  using Job = LedJob;
  using Participant = LedJob::Participant;
  using Phase = LedJob::Phase;

  // The forming job of that name and user, or a new one; the error says why neither is possible.
  Result<LedJobs::JobNumber> Place(const JoinJob& join, TimeNs now);
  Status CheckJoin(NodeId node, const JoinJob& join, const Job& job) const;
  Status CheckRankAttached(const Job& job, const Participant& participant,
                           const ReportRankAttached& rank) const;
  void NoteRefused(NodeId node, const std::string& why);

  LedJobs& jobs_;
  LeaderSteps& steps_;
  LeaderSettings& settings_;
  LedQuorums& quorums_;
  LostEpochs lost_;
  RefusedRanks refused_ranks_;
  std::vector<RefusedNode> refused_nodes_;
  std::uint32_t jobs_opened_ = 0;  // their epochs start from it
};

}  // namespace headrace::service
