// How this service meets others: it leads the jobs that meet at its address, and takes part in
// those of its ranks, by one connection for each leader (to itself too, where it leads its own).
// Control's thread only.
//
// The rules are Leader's and Follower's (service/membership); here are the connections they speak
// over and the doors to dispatch and the lanes.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "ipc/base/result.h"
#include "service/control/desk.h"
#include "service/control/outbox.h"
#include "service/control/peers/peer_dialer.h"
#include "service/control/peers/peer_listener.h"
#include "service/control/tls.h"
#include "service/membership/follower.h"
#include "service/membership/leader.h"
#include "service/membership/round_trips.h"

namespace headrace::service {

// Another service, for people.
struct PeerView {
  std::string name{};  // of the node; empty while it has not said it
  std::string address{};
  bool leads = false;  // this service is a node of its jobs; else it is one of ours
  bool connected = false;
  std::string why{};  // it is not connected; empty: no job needs it now
  RoundTrip round_trip{};
};

class Peers final : private kj::TaskSet::ErrorHandler {
 public:
  // Listens at the options' address, unless there is none. `desk`, `ports` and `outbox` outlive
  // this.
  static Result<kj::Own<Peers>> Create(Desk& desk, const ControlPorts& ports,
                                       kj::AsyncIoContext& io, Outbox& outbox);
  Peers(Desk& desk, const ControlPorts& ports, kj::AsyncIoContext& io, Outbox& outbox,
        std::unique_ptr<PeerSecurity> security);
  ~Peers() noexcept(false);

  // The port it listens at; 0: it does not.
  unsigned port() const { return port_; }

  // ---- from the entrance and the leases ----
  // What a rank asked for that meets others somewhere, before it gets a seat; fills in defaults.
  Status CheckAttach(LeaseRequest& request) const;
  void RankAttached(const SessionIdentity& identity);
  void RankLost(const SessionIdentity& identity, const std::string& cause);

  // ---- from the plans' side of sessions and admins, about jobs with a rendezvous ----
  const Follower& follower() const { return follower_; }
  void LayoutSet(const SessionIdentity& identity, std::shared_ptr<const Layout> layout,
                 std::optional<plan::Policy> policy);
  void Want(JobId job, plan::Policy policy);
  void Steer(JobId job, const Steering& steering);
  // The answer to a MakePlan of a job that is led here.
  void PlanCame(const PlanMade& message);

  // ---- from dispatch and the lanes ----
  template <typename Message>
  void Take(const Message& message) {
    follower_.Take(message);
    Act();
  }

  // ---- from the connections ----
  const NodeFacts& self() const { return self_; }
  Status NodeCame(NodeId node, const NodeFacts& facts, const std::string& address);
  void NodeTold(NodeId node, const PeerMessage& message);
  void NodeGone(NodeId node, const Error& error);
  void LeaderUp(const std::string& leader);
  void LeaderSilent(const std::string& leader, const std::string& cause);
  void LeaderRefused(const std::string& leader, const Error& error);
  void LeaderDown(const std::string& leader, const Error& error);
  void LeaderTold(const std::string& leader, const PeerMessage& message);
  // Says something to people, a bounded number of times in ten seconds.
  void Say(const Error& error);

  // Every service that is connected, that a job waits for or that the list of peers names.
  std::vector<PeerView> View() const;

  // Tells all others that the service is stopping; resolves when they know, or soon.
  kj::Promise<void> Stop();

 private:
  // Carries out what the machines want done.
  void Act();
  void Do(const ToLeader& action);
  void Do(const ToDispatch& action);
  void Do(const ToLane& action);
  void Do(const ToWatch& action);
  void Do(const ReachLeader& action);
  void Do(const LeaveLeader& action);
  void SweepDialers();
  kj::Promise<void> Listen(kj::Network& network);
  // "b" of the list of peers is its address there.
  std::string AddressOf(const std::string& leader) const;
  void taskFailed(kj::Exception&& exception) override;

  Desk& desk_;
  const ControlPorts& ports_;
  Outbox& outbox_;
  const PeerOptions& options_;
  kj::Network& network_;
  std::unique_ptr<PeerSecurity> security_;
  NodeFacts self_;
  Leader leader_;
  Follower follower_;
  unsigned port_ = 0;
  std::string silence_;  // of a server's leader, as it was said last
  TimeNs said_since_ns_ = 0;
  int said_ = 0;
  PeerListener listener_;
  std::map<std::string, kj::Own<PeerDialer>> dialers_;  // by the leader's address
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
