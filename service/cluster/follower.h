// A node's side of the jobs that it takes part in: the messages to their leaders, to dispatch and
// to the lanes. Runs on the thread of its owner. Pure: no clock, no network, no log.
//
// A job without a rendezvous has all of its ranks on this node. Its leader is in process and takes
// the same messages. Such a job has no links, and dispatch begins it, and ends it for a rank that
// is gone, without waiting for the leader.
//
// A job of this node is identified by its JobId. Two kinds of jobs have none and are identified by
// the leader's number: one that this service only sums for (role server), and one that is known
// only because its leader has to be told of a rank that was refused here. Every failure, wherever
// it is found, arrives here once, as AnnounceJobFailed or as the loss of the leader. Then dispatch
// is told and the links are closed, in this order. A job that ends without a failure keeps its
// links until the leader closes it, because other nodes may still receive.
//
// This class has the node's ranks and the connections to leaders, and passes the leaders' messages
// to its parts. The jobs and their pending actions are in followed_jobs.h.
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
  // `directory` must outlive this; the service's leader shares it.
  Follower(FollowerOptions options, JobDirectory& directory);
  // Not movable, because its parts refer to each other.
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Whether the rank may attach to the job of that name and user. The rank table checks the ranks
  // of this node.
  Status CheckAttach(std::string_view job, std::uint32_t uid, std::uint32_t rank) const;
  void OnRankAttached(const SessionIdentity& identity);
  // Answered by an action: kUnavailable, with what the job waits for, if it cannot run yet.
  void Handle(const AskForming& message, TimeNs now);
  // `exited`: its process has ended, too.
  void OnRankLost(JobId job, std::uint32_t rank, const std::string& cause, bool exited = false);
  // A rank of a job without a rendezvous is gone, for whatever reason.
  void OnRankEnded(JobId job, std::uint32_t rank);
  // The service has refused a rank of a job that is forming, here or on another node. The other
  // ranks are told, because they would wait for it in vain.
  void Handle(const RankRefused& message);

  // CheckLayout says whether the rank may set the layout; OnLayoutSet records that it has. A rank
  // of an unknown job may: the job has ended, and dispatch reports it.
  Status CheckLayout(JobId job, std::uint32_t rank, const Layout& layout,
                     std::optional<plan::Policy> policy) const {
    return plans_.CheckLayout(job, rank, layout, policy);
  }
  void OnLayoutSet(JobId job, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                   std::optional<plan::Policy> policy) {
    plans_.OnLayoutSet(job, rank, std::move(layout), policy);
  }
  // A request for another policy of the job, which must be known here.
  void SetPolicy(JobId job, plan::Policy policy) { settings_.SetPolicy(job, policy); }
  // An authorised setting change. Cancelling works in any phase. Other changes that arrive before
  // the job runs are kept until then, the last of each kind.
  void Steer(JobId job, const Steering& steering) { settings_.Steer(job, steering); }
  // The jobs of that name that have ranks here and have not ended, oldest first. There may be two,
  // since a new job may begin while the former one ends. FindJob returns the newest, if any.
  std::vector<KnownJob> FindJobs(std::string_view name) const { return settings_.FindJobs(name); }
  std::optional<KnownJob> FindJob(std::string_view name) const { return settings_.FindJob(name); }

  // The rank's lease has ended: it left, its process ended, or its connection broke.
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
  void Handle(const GroupFailed& message) { steps_.Handle(message); }
  void Handle(const PlanAck& message) { plans_.Handle(message); }
  void Handle(const TimesSeen& message) { plans_.Handle(message); }
  void Handle(const PlanMade& message) { home_.Handle(message); }
  void Handle(const RankLate& message) { settings_.Handle(message); }
  void Handle(const BlockHashed& message) { settings_.Handle(message); }
  void Handle(const SteerJob& message) { Steer(message.job, message.steering); }

  void OnLeaderUp(const std::string& leader);
  // Connecting to the leader failed; `cause` names it. Fails the jobs whose deadline has passed.
  void OnLeaderUnreachable(const std::string& leader, const std::string& cause, TimeNs now);
  // The leader refuses this node.
  void OnLeaderRefused(const std::string& leader, const Error& error);
  // The connection is closed: it broke, or LeaveLeader was executed.
  void OnLeaderDown(const std::string& leader, const Error& error);
  void Handle(const std::string& leader, const PeerMessage& message, TimeNs now);

  // When Expire is due; kNever if no job is forming. Expire fails the jobs on all nodes that have
  // been forming for too long, and answers requests that have waited long enough.
  TimeNs NextDeadline() const;
  void Expire(TimeNs now);

  // The actions since the last call, in order.
  std::vector<FollowerAction> DrainActions();
  std::size_t jobs_count() const { return jobs_.all().size(); }
  const FollowedJobs::Jobs& jobs() const { return jobs_.all(); }
  std::size_t quorums_count() const { return quorums_.count(); }

 private:
  using Job = FollowedJob;
  using Phase = FollowedJob::Phase;
  using AttachedRank = FollowedJob::AttachedRank;

  // For the job with the message's number on the leader's connection.
  template <typename Message>
  void HandOfJob(const std::string& leader, const Message& message, TimeNs now);
  // What users can do about a leader that does not answer.
  static std::string Advice(const Job& job);
  void Join(Job& job);
  void ReportRefused(const RankRefused& message, const std::string& cause);
  void SendRankAttached(const Job& job, std::uint32_t rank);
  // Warns once, when the job begins, if min_world is at most half of its ranks.
  void WarnOfHalves(const SessionIdentity& identity);

  // Each part refers to former ones only.
  FollowedJobs jobs_;
  FollowerPlans plans_;
  FollowerSettings settings_;
  FollowerSteps steps_;
  FollowedQuorums quorums_;
  FormerLeaders former_;
  TimeNs now_ = 0;  // time of the last request or Expire of quorums
  JobDirectory home_directory_;
  std::uint32_t refused_reported_ = 0;
  Leader home_;  // leads the jobs without a rendezvous
};

}  // namespace headrace::service
