// One connection between two services, whichever of them opened it. Messages are sent in order, and
// both ends send heartbeats. Used on the peers thread only.
//
// A link ends once, with the first cause. WhenEnded resolves then, and the owner destroys the link.
// It may be destroyed at any time but from within OnMessage and Greet: calls of the other end that
// are still under way then fail.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/refcount.h>
#include <kj/timer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/heartbeat.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/round_trips.h"
#include "service/loop/bounded_network.h"
#include "service/peers/tls.h"
#include "service/peers/unsent_messages.h"

namespace headrace::service {

// Limit of one message. The longest are agreements of jobs of 64 nodes with long addresses.
inline constexpr std::uint64_t kPeerMessageWordsMax = std::uint64_t{1} << 20;
inline constexpr std::size_t kMessagesPerCallMax = 16;  // messages in one call
// Limit of bytes in one call, unless a single message has more. Far below the limit of unread
// bytes.
inline constexpr std::size_t kBytesPerCallMax = std::size_t{256} << 10;
inline constexpr TimeNs kPeerMessagesPerSecond = 5000;  // of one link; see message_pacer.h
inline constexpr TimeNs kPeerMessagesBurst = 10'000;
inline constexpr auto kHelloTimeout = 5 * kj::SECONDS;

class PeerLink final : private kj::TaskSet::ErrorHandler {
 public:
  class Owner {
   public:
    virtual ~Owner() noexcept(false) = default;
    virtual const NodeFacts& Self() const = 0;
    // Hello of the service that connected. On success it is sent Self().
    virtual Status Greet(PeerLink& link, const NodeFacts& facts) = 0;
    virtual void OnMessage(PeerLink& link, const PeerMessage& message) = 0;
  };
  struct Options {
    capnp::rpc::twoparty::Side side;
    TimeNs detection_ns = 3 * kSecond;
    std::string name{};  // the node that must answer our hello; empty: any
  };

  // `owner` and `timer` must outlive the link.
  PeerLink(SecuredPeer peer, Options options, kj::Timer& timer, Owner& owner);
  ~PeerLink() noexcept(false);
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  // The first call of the connecting side: who answered, or why it refuses this node.
  kj::Promise<Result<NodeFacts>> SendHello();
  void Send(PeerMessage message);
  // Sends Goodbye, and resolves when the other end has received it.
  kj::Promise<void> Finish(const std::string& cause);

  kj::Promise<Error> WhenEnded() { return kj::mv(ended_); }
  void End(const Error& error);

  bool greeted() const { return greeted_; }
  // Whether it ended because the other side answered nothing for too long.
  bool silent() const { return silent_; }
  // "node b (10.0.0.2:4711)", or the address until the name is known.
  std::string DescribePeer() const;
  const std::string& peer_address() const { return peer_.address; }
  // Empty until it is known.
  const std::string& peer_name() const { return name_; }
  RoundTrip round_trip() const { return round_trips_.Best(); }

 private:
  class Bootstrap;
  struct Handle;
  class Port;

  // The other end is known, so messages can be sent.
  void Begin(const NodeFacts& facts, schema::PeerPort::Client port);
  void Receive(const PeerMessage& message);
  void DeliverEarly();
  void Flush();
  kj::Promise<void> PingAgain();
  void OnPong(std::int64_t asked_unix_ns, TimeNs asked_ns, std::int64_t theirs_unix_ns);
  kj::Promise<void> WatchHeartbeat();
  void taskFailed(kj::Exception&& exception) override;

  SecuredPeer peer_;
  Options options_;
  kj::Timer& timer_;
  Owner& owner_;
  std::string name_;
  bool greeted_ = false;
  bool silent_ = false;
  UnsentMessages unsent_;
  std::vector<PeerMessage> early_;  // arrived before the answer to hello
  bool sending_ = false;
  Heartbeat heartbeat_;
  RoundTrips round_trips_;
  kj::Own<kj::PromiseFulfiller<Error>> end_;
  kj::Promise<Error> ended_ = nullptr;
  kj::Own<kj::PromiseFulfiller<void>> all_sent_;  // null unless Finish waits for it
  schema::PeerPort::Client port_ = nullptr;       // usable once greeted
  kj::Own<Handle> handle_;                        // shared with the capabilities given out
  capnp::TwoPartyVatNetwork network_;
  MessagePacer pace_{kPeerMessagesPerSecond, kPeerMessagesBurst};
  BoundedNetwork bounded_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc_;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
