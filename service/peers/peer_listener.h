// The TCP port, the connections of other services to it, and the channels of those that have said
// hello. Anybody can connect: connections without a hello are limited in number and time, and do
// not delay others. Used on the peers thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <map>
#include <string>
#include <vector>

#include "service/cluster/leader.h"
#include "service/peers/peer_channel.h"
#include "service/peers/peer_link.h"
#include "service/peers/peer_reach.h"
#include "service/rpc/messages.h"

namespace headrace::service {

inline constexpr std::size_t kPeerConnectionsMax = 256;
inline constexpr std::size_t kStrangersMax = 64;  // limit of connections without a hello
// Limit of the services that are looked for at one time because their connections broke, each at
// the addresses of all of its rails. Others are given LinkGrace to come back.
inline constexpr std::size_t kReachesMax = 8;

class PeerListener final : public PeerLink::Owner,
                           public PeerChannel::Owner,
                           private kj::TaskSet::ErrorHandler {
 public:
  // Receives the services that have connected and their messages.
  class Owner {
   public:
    virtual ~Owner() noexcept(false) = default;
    virtual const NodeFacts& Self() const = 0;
    virtual Status OnNodeConnected(NodeId node, const NodeFacts& facts,
                                   const std::string& address) = 0;
    virtual void OnNodeMessage(NodeId node, const PeerMessage& message) = 0;
    virtual void OnNodeLost(NodeId node, const Error& error) = 0;
    // Its channel goes on over another connection; what happened, for people.
    virtual void OnNodeResumed(const std::string& happened) = 0;
    // Where the service with these facts, which connects from `address`, may be looked for.
    virtual std::vector<std::string> AddressesOf(const NodeFacts& facts,
                                                 const std::string& address) const = 0;
    // A service at `address` was refused; `name` is empty if it is not known.
    virtual void OnNodeRefused(const std::string& name, const std::string& address,
                               const Error& error) = 0;
    // An event for users.
    virtual void ReportError(const Error& error) = 0;
  };

  // All must outlive this.
  PeerListener(Owner& owner, PeerSecurity& security, kj::Network& network, kj::Timer& timer,
               TimeNs detection_ns);
  ~PeerListener() noexcept(false) override;

  // Accepts connections until the promise is dropped.
  kj::Promise<void> Accept(kj::Own<kj::ConnectionReceiver> port);

  void Send(NodeId node, PeerMessage message);
  kj::Promise<void> Finish(const std::string& cause);
  // Appends the services that have sent hello.
  void View(std::vector<PeerView>& views) const;
  bool HasPeers() const { return !nodes_.empty() || !strangers_.empty(); }

 private:
  using Number = std::uint64_t;
  struct Node {
    std::string name;
    std::uint64_t instance = 0;
    bool encrypted = false;
    std::vector<std::string> addresses;  // where it listens itself; none: nobody knows
    kj::Own<PeerChannel> channel;
    kj::Own<PeerReach> reach;  // null unless it is looked for
    kj::Promise<void> reaching = nullptr;
  };
  using Nodes = std::map<NodeId, Node>;

  const NodeFacts& Self() const override;
  Result<std::uint64_t> Greet(PeerLink& link, const NodeFacts& facts,
                              const ChannelHello& channel) override;
  void OnGreeted(PeerLink& link) override;
  void OnMessage(PeerChannel& channel, const PeerMessage& message) override;
  void OnLinkNeeded(PeerChannel& channel) override;

  kj::Promise<void> AcceptNext(kj::ConnectionReceiver& port);
  void LetIn(SecuredPeer peer);
  void MakeRoom();
  void OnStrangerEnded(Number number, const Error& error);
  Result<std::uint64_t> Begin(PeerLink& link, const NodeFacts& facts, const ChannelHello& hello);
  Result<std::uint64_t> Resume(PeerLink& link, const NodeFacts& facts, const ChannelHello& hello);
  // A service that begins anew has no former channel. One that has a connection is left, and so is
  // that of another instance that is known to live.
  void LoseFormer(const NodeFacts& facts);
  void OnLost(NodeId node, const Error& error);
  void Reach(NodeId node);
  Nodes::iterator Find(const PeerChannel& channel);
  Nodes::iterator Find(const ChannelId& id);
  void taskFailed(kj::Exception&& exception) override;

  Owner& owner_;
  PeerSecurity& security_;
  kj::Network& network_;
  kj::Timer& timer_;
  TimeNs detection_ns_;
  Number links_count_ = 0;
  NodeId nodes_count_ = 0;
  std::map<Number, kj::Own<PeerLink>> strangers_;
  Nodes nodes_;
  Nodes::iterator greeted_ = nodes_.end();  // between Greet and OnGreeted
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
