// The leader's side of every job that meets at this service: who has come, what is missing, and the
// steps from "all are here" to "blocks may travel". Pure: no clock, no network, no log.
//
// A job is forming until all of its ranks are attached. Ranks that contradict those that have come
// end it for all of them. Then each step goes to every node and waits for all answers: open the
// links, measure them, start with the slowest lines measured and one hash. A failure at any step
// ends the job on every node with the first cause, and the leader forgets it: the next join under
// that name begins a new epoch. A job that ends in order is closed on every node when the last of
// them has forgotten it.
//
// A job whose nodes hand in layouts gets its plans here too: see planning.h.
//
// This class knows the nodes and hands each message to the part that it is for; jobs and what they
// are sent are in led_jobs.h.
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
  // `directory` outlives this; the service's follower shares it.
  Leader(LeaderOptions options, JobDirectory& directory)
      : jobs_(std::move(options), directory),
        plans_(jobs_),
        settings_(jobs_, plans_),
        steps_(jobs_, plans_),
        quorums_(jobs_),
        members_(jobs_, steps_, settings_, quorums_) {}
  // Its parts refer to each other.
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  // Whether a service that introduces itself so may come in; `address` is where it comes from.
  Status CheckNode(const NodeFacts& facts, const std::string& address) const;
  void OnNodeUp(NodeId node, NodeFacts facts, std::string address);
  // One was not let in, or did not let this one: those who wait here may wait for it, and are sent
  // that for as long as they wait; so are those who come later, until `why` is empty.
  void OnNodeRefused(const std::string& why);
  // Its connection is gone; `cause` names the node.
  void OnNodeDown(NodeId node, Code code, const std::string& cause);
  // What is not from a node, or about a job that is over, is ignored.
  void Handle(NodeId node, const PeerMessage& message, TimeNs now);
  // The answer to a MakePlan. Of a job that is over it is ignored.
  void Handle(const PlanMade& message) { plans_.Handle(message); }

  // When Expire is due; kNever: nothing waits for time.
  TimeNs NextDeadline() const { return quorums_.NextDeadline(); }
  void Expire(TimeNs now) { quorums_.Expire(now); }

  // What to send since the last call, in order.
  std::vector<ToNode> DrainMessages() { return jobs_.DrainMessages(); }
  std::vector<ToWatch> DrainOutgoing() { return jobs_.DrainOutgoing(); }
  // Other nodes than this one, for people.
  std::vector<RefusedNode> DrainRefused() { return members_.DrainRefused(); }
  std::size_t jobs_count() const { return jobs_.all().size(); }
  std::size_t quorums_count() const { return quorums_.count(); }
  std::size_t nodes_count() const { return jobs_.nodes().size(); }

 private:
  // Of the job that the node knows by the number in it.
  template <typename Message>
  void HandOfJob(NodeId node, const Message& message, TimeNs now);

  // In the order of what they know of each other.
  LedJobs jobs_;
  LeaderPlans plans_;
  LeaderSettings settings_;
  LeaderSteps steps_;
  LedQuorums quorums_;
  LeaderMembers members_;
};

}  // namespace headrace::service
