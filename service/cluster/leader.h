// The leader of all jobs that have their rendezvous at this service: which nodes and ranks have
// come, which are missing, and the steps until the job runs. Runs on the thread of its owner. Pure:
// no clock, no network, no log.
//
// A job is forming until all of its ranks are attached. If ranks contradict each other, the job
// fails for all. Then each step is sent to every node and waits for all answers: open the links,
// measure them, start with the slowest measured costs and one hash. A failure at any step fails the
// job on every node with the first cause, and the leader forgets it; the next join of that name
// begins a new epoch. A job that ends without a failure is closed on every node when the last node
// has forgotten it.
//
// Jobs with layouts also get their plans here; see planning.h.
//
// This class has the nodes and passes each message to its part. The jobs and the messages to them
// are in led_jobs.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/cluster/leader_members.h"
#include "service/cluster/leader_plans.h"
#include "service/cluster/leader_settings.h"
#include "service/cluster/leader_steps.h"
#include "service/cluster/led_jobs.h"
#include "service/cluster/led_quorums.h"
#include "service/cluster/local_messages.h"
#include "service/cluster/peer_messages.h"
#include "service/peers/messages.h"

namespace headrace::service {

class Leader {
 public:
  // `directory` must outlive this; the service's follower shares it.
  Leader(LeaderOptions options, JobDirectory& directory)
      : jobs_(std::move(options), directory),
        plans_(jobs_),
        settings_(jobs_, plans_),
        steps_(jobs_, plans_),
        quorums_(jobs_),
        members_(jobs_, steps_, settings_, quorums_) {}
  // Not movable, because its parts refer to each other.
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  // Whether the service with these facts may connect from `address`.
  Status CheckNode(const NodeFacts& facts, const std::string& address) const;
  void OnNodeUp(NodeId node, NodeFacts facts, std::string address);
  // A service was refused, or has refused this one. Jobs that are forming may wait for it, so their
  // nodes are told, and so are those that join later, until it is called with an empty `why`.
  void OnNodeRefused(const std::string& why);
  // The node's connection is closed; `cause` names the node.
  void OnNodeDown(NodeId node, Code code, const std::string& cause);
  // Ignores messages that no node sends and messages about jobs that have ended.
  void Handle(NodeId node, const PeerMessage& message, TimeNs now);
  // The answer to MakePlan. Ignored if the job has ended.
  void Handle(const PlanMade& message) { plans_.Handle(message); }

  // When Expire is due; kNever if no deadline runs.
  TimeNs NextDeadline() const { return quorums_.NextDeadline(); }
  void Expire(TimeNs now) { quorums_.Expire(now); }

  // The messages since the last call, in order.
  std::vector<ToNode> DrainMessages() { return jobs_.DrainMessages(); }
  std::vector<ToWatch> DrainOutgoing() { return jobs_.DrainOutgoing(); }
  // The names of the other nodes, for texts.
  std::vector<RefusedNode> DrainRefused() { return members_.DrainRefused(); }
  std::size_t jobs_count() const { return jobs_.all().size(); }
  std::size_t quorums_count() const { return quorums_.count(); }
  std::size_t nodes_count() const { return jobs_.nodes().size(); }

 private:
  // For the job with the message's number on the node's connection.
  template <typename Message>
  void HandOfJob(NodeId node, const Message& message, TimeNs now);

  // Each part refers to former ones only.
  LedJobs jobs_;
  LeaderPlans plans_;
  LeaderSettings settings_;
  LeaderSteps steps_;
  LedQuorums quorums_;
  LeaderMembers members_;
};

}  // namespace headrace::service
