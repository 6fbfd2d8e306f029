// The TCP port and the services that came in by it. Anybody may knock: what has not said hello is
// bounded in number and time, and never in the way of those who have.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <map>
#include <string>
#include <vector>

#include "service/actor/messages.h"
#include "service/cluster/leader.h"
#include "service/peers/peer_link.h"

namespace headrace::service {

class Peers;

inline constexpr std::size_t kPeerConnectionsMax = 256;
inline constexpr std::size_t kStrangersMax = 64;  // that have not said hello yet

class PeerListener final : public PeerLink::Owner, private kj::TaskSet::ErrorHandler {
 public:
  // All outlive this.
  PeerListener(Peers& peers, PeerSecurity& security, kj::Timer& timer, TimeNs detection_ns);

  // Accepts for as long as the promise is kept.
  kj::Promise<void> Accept(kj::Own<kj::ConnectionReceiver> port);

  void Tell(NodeId node, PeerMessage message);
  kj::Promise<void> Finish(const std::string& cause);
  // Appends those that have said hello.
  void View(std::vector<PeerView>& views) const;
  bool HasPeers() const { return !accepted_.empty(); }

 private:
  struct Accepted {
    std::string name;  // empty until it has said hello
    kj::Own<PeerLink> link;
  };

  const NodeFacts& Self() const override;
  Status Greet(PeerLink& link, const NodeFacts& facts) override;
  void Told(PeerLink& link, const PeerMessage& message) override;

  kj::Promise<void> AcceptNext(kj::ConnectionReceiver& port);
  void LetIn(SecuredPeer peer);
  void MakeRoom();
  void Ended(NodeId node, const Error& error);
  NodeId Find(const PeerLink& link) const;
  void taskFailed(kj::Exception&& exception) override;

  Peers& peers_;
  PeerSecurity& security_;
  kj::Timer& timer_;
  TimeNs detection_ns_;
  NodeId accepted_count_ = 0;
  std::map<NodeId, Accepted> accepted_;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
