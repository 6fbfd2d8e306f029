// The TCP port and the connections of other services to it. Anybody can connect: connections
// without a hello are limited in number and time, and do not delay others. Used on the peers thread
// only.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <map>
#include <string>
#include <vector>

#include "service/cluster/leader.h"
#include "service/peers/peer_link.h"
#include "service/rpc/messages.h"

namespace headrace::service {

inline constexpr std::size_t kPeerConnectionsMax = 256;
inline constexpr std::size_t kStrangersMax = 64;  // limit of connections without a hello

class PeerListener final : public PeerLink::Owner, private kj::TaskSet::ErrorHandler {
 public:
  // Receives accepted connections and their messages.
  class Owner {
   public:
    virtual ~Owner() noexcept(false) = default;
    virtual const NodeFacts& Self() const = 0;
    virtual Status OnNodeConnected(NodeId node, const NodeFacts& facts,
                                   const std::string& address) = 0;
    virtual void OnNodeMessage(NodeId node, const PeerMessage& message) = 0;
    virtual void OnNodeLost(NodeId node, const Error& error) = 0;
    // A service at `address` was refused; `name` is empty if it is not known.
    virtual void OnNodeRefused(const std::string& name, const std::string& address,
                               const Error& error) = 0;
    // An event for users.
    virtual void ReportError(const Error& error) = 0;
  };

  // All must outlive this.
  PeerListener(Owner& owner, PeerSecurity& security, kj::Timer& timer, TimeNs detection_ns);

  // Accepts connections until the promise is dropped.
  kj::Promise<void> Accept(kj::Own<kj::ConnectionReceiver> port);

  void Send(NodeId node, PeerMessage message);
  kj::Promise<void> Finish(const std::string& cause);
  // Appends the services that have sent hello.
  void View(std::vector<PeerView>& views) const;
  bool HasPeers() const { return !accepted_.empty(); }

 private:
  struct Accepted {
    std::string name;  // empty until hello
    kj::Own<PeerLink> link;
  };

  const NodeFacts& Self() const override;
  Status Greet(PeerLink& link, const NodeFacts& facts) override;
  void OnMessage(PeerLink& link, const PeerMessage& message) override;

  kj::Promise<void> AcceptNext(kj::ConnectionReceiver& port);
  void LetIn(SecuredPeer peer);
  void MakeRoom();
  void Ended(NodeId node, const Error& error);
  NodeId Find(const PeerLink& link) const;
  void taskFailed(kj::Exception&& exception) override;

  Owner& owner_;
  PeerSecurity& security_;
  kj::Timer& timer_;
  TimeNs detection_ns_;
  NodeId accepted_count_ = 0;
  std::map<NodeId, Accepted> accepted_;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
