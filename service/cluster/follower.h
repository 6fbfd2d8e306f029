// A node's side of the jobs it takes part in: what it sends to their leaders, to its dispatch and
// its lanes. Pure: no clock, no network, no log.
//
// A job without a rendezvous has all of its ranks here. Its leader is in here too, and takes the
// same messages; it has no links, and dispatch needs no leave to begin it, nor to end it for a rank
// that is gone.
//
// A job of this node is known by its JobId; one that this service only sums for (role server) has
// no JobId and is known by the leader's number; nor has one of which the leader is only sent that a
// rank of it was refused here. Every failure, wherever it is found, comes here
// once as AnnounceJobFailed or as the loss of the leader; then dispatch is sent it and the links
// are closed, in this order. A job that ends in order keeps its links until the leader closes it,
// since others may still receive.
//
// This class knows this node's ranks and the connections to leaders, and hands what leaders send to
// the part that it is for; jobs and what is to be done for them are in followed_jobs.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/cluster/followed_jobs.h"
#include "service/cluster/followed_quorums.h"
#include "service/cluster/follower_plans.h"
#include "service/cluster/follower_settings.h"
#include "service/cluster/follower_steps.h"
#include "service/cluster/former_leaders.h"
#include "service/cluster/leader.h"
#include "service/cluster/peer_messages.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/session/session.h"

namespace headrace::service {

class Follower {
 public:
  // `directory` outlives this; the service's leader shares it.
  Follower(FollowerOptions options, JobDirectory& directory);
  // Its parts refer to each other.
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Whether the rank may attach to a job of that name; the ranks on this node are the rank table's.
  Status CheckAttach(std::string_view job, std::uint32_t rank) const;
  void OnRankAttached(const SessionIdentity& identity);
  // Answered by an action: kUnavailable with what the job waits for if it cannot run yet.
  void Handle(const AskForming& message, TimeNs now);
  // `exited`: with its process.
  void OnRankLost(JobId job, std::uint32_t rank, const std::string& cause, bool exited = false);
  // A rank of a job without a rendezvous is gone, lost or not.
  void OnRankEnded(JobId job, std::uint32_t rank);
  // The service took no session for a rank of a job that gathers, here or elsewhere: who waits for
  // it would wait in vain.
  void Handle(const RankRefused& message);

  // Whether the rank of that job may hand the layout in, and that it has. A rank of an unknown job
  // may: it has ended, and dispatch says so.
  Status CheckLayout(JobId job, std::uint32_t rank, const Layout& layout,
                     std::optional<plan::Policy> policy) const {
    return plans_.CheckLayout(job, rank, layout, policy);
  }
  void OnLayoutSet(JobId job, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                   std::optional<plan::Policy> policy) {
    plans_.OnLayoutSet(job, rank, std::move(layout), policy);
  }
  // Somebody wants plans by that policy for the job, which is known here.
  void SetPolicy(JobId job, plan::Policy policy) { settings_.SetPolicy(job, policy); }
  // Somebody steers the job, and may. Cancelling works at any stage; what comes before the job runs
  // is kept until then, the last of each kind.
  void Steer(JobId job, const Steering& steering) { settings_.Steer(job, steering); }
  // The jobs of that name that have ranks here and go on, the newest last: while one ends, the
  // next may have begun. FindJob gives the newest, nothing when there is none.
  std::vector<KnownJob> FindJobs(std::string_view name) const { return settings_.FindJobs(name); }
  std::optional<KnownJob> FindJob(std::string_view name) const { return settings_.FindJob(name); }

  // The rank's lease has ended, in order, with its process or otherwise.
  void OnLeaseEnded(const SessionIdentity& identity, bool orderly, const std::string& cause,
                    bool exited) {
    quorums_.OnLeaseEnded(identity, orderly, cause, exited);
  }
  void Handle(const AskQuorum& message, TimeNs now);
  void Handle(const QuorumClientLost& message) { quorums_.Handle(message); }

  void Handle(const JobFailed& message);
  void Handle(const RankLeft& message);
  void Handle(const JobEnded& message);
  void Handle(const GroupOpened& message) { steps_.Handle(message); }
  void Handle(const GroupMeasured& message) { steps_.Handle(message); }
  void Handle(const PlanAck& message) { plans_.Handle(message); }
  void Handle(const TimesSeen& message) { plans_.Handle(message); }
  void Handle(const PlanMade& message) { home_.Handle(message); }
  void Handle(const RankLate& message) { settings_.Handle(message); }
  void Handle(const BlockHashed& message) { settings_.Handle(message); }
  void Handle(const SteerJob& message) { Steer(message.job, message.steering); }

  void OnLeaderUp(const std::string& leader);
  // An attempt to reach it failed; `cause` names it. Ends the jobs whose ranks' patience is over.
  void OnLeaderUnreachable(const std::string& leader, const std::string& cause, TimeNs now);
  void OnLeaderRefused(const std::string& leader, const Error& error);  // it will not have us
  // The connection is gone: it broke, or LeaveLeader was carried out.
  void OnLeaderDown(const std::string& leader, const Error& error);
  void Handle(const std::string& leader, const PeerMessage& message, TimeNs now);

  // When Expire is due, kNever: no job is forming. Expire ends the jobs, everywhere, that have been
  // forming for longer than they may, and answers who has asked long enough ago.
  TimeNs NextDeadline() const;
  void Expire(TimeNs now);

  // What to do since the last call, in order.
  std::vector<FollowerAction> DrainActions();
  std::size_t jobs_count() const { return jobs_.all().size(); }
  std::size_t quorums_count() const { return quorums_.count(); }

 private:
  using Job = FollowedJob;
  using Stage = FollowedJob::Stage;
  using AttachedRank = FollowedJob::AttachedRank;

  // Of the job of that number on the leader's connection.
  template <typename Message>
  void HandOfJob(const std::string& leader, const Message& message, TimeNs now);
  // What its ranks' users can do about a leader that does not answer.
  static std::string Advice(const Job& job);
  void Join(Job& job);
  void ReportRefused(const RankRefused& message, const std::string& cause);
  void SendRankAttached(const Job& job, std::uint32_t rank);

  // In the order of what they know of each other.
  FollowedJobs jobs_;
  FollowerPlans plans_;
  FollowerSettings settings_;
  FollowerSteps steps_;
  FollowedQuorums quorums_;
  FormerLeaders former_;
  TimeNs now_ = 0;  // when a member asked or was waited for last
  JobDirectory home_directory_;
  std::uint32_t refused_reported_ = 0;
  Leader home_;  // of the jobs without a rendezvous
};

}  // namespace headrace::service
