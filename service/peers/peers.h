// Connects this service to others. It leads the jobs that have their rendezvous at its address and
// takes part in the jobs of its ranks, with one connection to each leader (also to itself if it
// leads them). Used on the peers thread only.
//
// The rules are in Leader and Follower (service/cluster). This class has the connections and passes
// actions to the inboxes of dispatch and the lanes.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "ipc/base/result.h"
#include "service/cluster/follower.h"
#include "service/cluster/leader.h"
#include "service/cluster/leader_names.h"
#include "service/loop/outbox.h"
#include "service/peers/alarm.h"
#include "service/peers/peer_dialer.h"
#include "service/peers/peer_listener.h"
#include "service/peers/peers_options.h"
#include "service/peers/refusals.h"
#include "service/peers/served_rows.h"
#include "service/peers/tls.h"

namespace headrace::service {

class Peers final : public PeerDialer::Owner,
                    public PeerListener::Owner,
                    private kj::TaskSet::ErrorHandler {
 public:
  // Listens at the options' address, unless there is none. All outlive this.
  static Result<kj::Own<Peers>> Create(const PeerOptions& options, const PeersPorts& ports,
                                       kj::AsyncIoContext& io, Outbox& outbox);
  Peers(const PeerOptions& options, const PeersPorts& ports, kj::AsyncIoContext& io, Outbox& outbox,
        std::unique_ptr<PeerSecurity> security);
  ~Peers() noexcept(false);

  // The port it listens at; 0: it does not.
  unsigned port() const { return names_.port; }
  kj::Timer& timer() const { return timer_; }

  // ---- from the leases ----
  void Handle(const RankAttached& message);
  void Handle(const RankEnded& message);

  // ---- from sessions and admins ----
  const Follower& follower() const { return follower_; }
  // Compares the layout with those of the job's other ranks, gives it to dispatch and plans with
  // it. One that is not the other ranks' ends the job: none of its gradients can ever move.
  Status Handle(const HandInLayout& message);
  void Handle(const AskForming& message);
  void Handle(const AskQuorum& message);
  void SetPolicy(JobId job, plan::Policy policy);
  void Steer(JobId job, const Steering& steering);

  // The answer to a MakePlan, of a job that is led here; whoever does not know it ignores it.
  void Handle(const PlanMade& message);

  // ---- from dispatch and the lanes ----
  template <typename Message>
  void Handle(const Message& message) {
    follower_.Handle(message);
    Act();
  }

  // Every service that is connected, that a job waits for or that the list of peers names.
  std::vector<PeerView> View() const;

  // How far this service gets at that address, step by step.
  kj::Promise<std::vector<PeerStep>> TryToReach(const std::string& address);

  // The certificate's files may have changed.
  void CheckFiles() { security_->CheckFiles(); }
  // From now on no other service is let in.
  void Drain() { draining_ = true; }
  // Sends all others a goodbye; resolves when they have received it, or soon.
  kj::Promise<void> Stop();

 private:
  // ---- from the connections ----
  const NodeFacts& Self() const override { return self_; }
  Status OnNodeConnected(NodeId node, const NodeFacts& facts, const std::string& address) override;
  void OnNodeMessage(NodeId node, const PeerMessage& message) override;
  void OnNodeLost(NodeId node, const Error& error) override;
  void OnNodeResumed(const std::string& happened) override;
  std::vector<std::string> AddressesOf(const NodeFacts& facts,
                                       const std::string& address) const override;
  // Another service, which comes from `address`, was not let in, or would not have this one.
  void OnNodeRefused(const std::string& name, const std::string& address,
                     const Error& error) override;
  void OnLeaderUp(const std::string& leader) override;
  void OnLeaderUnreachable(const std::string& leader, const std::string& cause) override;
  void OnLeaderRefused(const std::string& leader, const Error& error) override;
  void OnLeaderDown(const std::string& leader, const Error& error) override;
  void OnLeaderResumed(const std::string& leader, const std::string& happened) override;
  void OnLeaderMessage(const std::string& leader, const PeerMessage& message) override;
  // As an event for people, a bounded number of times in ten seconds.
  void ReportError(const Error& error) override { Report(error.code(), error.text()); }
  void Report(Code code, const std::string& text);

  // Carries out what the machines want done.
  void Act();
  void Execute(const ToLeader& action);
  void Execute(const ToDispatch& action);
  void Execute(const ToLane& action);
  void Execute(const Answered& action);
  void Execute(const QuorumAnswered& action);
  void Execute(const SessionBroken& action);
  void Execute(const MembersWait& action);
  void Execute(const JobPlaced& action);
  void Execute(const ToWatch& action);
  void Execute(const ReachLeader& action);
  void Execute(const LeaveLeader& action);
  void Execute(const NoteRefusal& action);
  void Dial(const std::string& leader);
  // Connects to those for which there was no room, or refuses them where there is still none.
  void DialUndialed();
  void SweepDialers();
  // The board shows peers now, and again for as long as there are connections.
  void ShowPeers();
  kj::Promise<void> ShowPeersAgain();
  void WritePeerRows();
  Status Listen(kj::AsyncIoContext& io);
  void ShowEvent(Event event);
  void taskFailed(kj::Exception&& exception) override;

  const PeerOptions& options_;
  const PeersPorts& ports_;
  Outbox& outbox_;
  kj::Network& network_;
  kj::Timer& timer_;
  std::unique_ptr<PeerSecurity> security_;
  LeaderNames names_;
  NodeFacts self_;
  std::uint64_t jobs_numbered_ = 0;  // that are led here
  JobDirectory directory_;
  Leader leader_;
  Follower follower_;
  bool draining_ = false;
  Refusals refusals_;
  TimeNs refused_announced_ns_ = 0;  // when jobs that are forming were sent one
  kj::Promise<void> refused_forgotten_ = kj::NEVER_DONE;
  std::string unreachable_;  // why a server's leader is, as it was reported last
  TimeNs reported_since_ns_ = 0;
  int reported_ = 0;
  bool shows_peers_ = false;  // again and again
  std::vector<ipc::PeerRow> shown_;
  ServedRows served_rows_;
  PeerListener listener_;
  std::map<std::string, kj::Own<PeerDialer>> dialers_;  // by the leader's address
  // The addresses of leaders that were connected; the one where it worked last is the first.
  std::map<std::string, std::vector<std::string>> dialed_;
  std::set<std::string> undialed_;  // leaders that wait for room in it
  kj::TaskSet tasks_;
  Alarm alarm_;  // of jobs that take too long to form
};

}  // namespace headrace::service
