// One connection between two services, whichever of them opened it. It carries the messages of a
// channel (peer_channel.h), one call at a time, and both ends send pings. Used on the peers thread
// only.
//
// A link ends once, with the first cause. WhenEnded resolves then, and the owner destroys the link.
// It may be destroyed at any time but from within its own calls of Traffic and Greet: calls of the
// other end that are still under way then fail.
#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/refcount.h>
#include <kj/timer.h>

#include <cstdint>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/peer_messages.h"
#include "service/cluster/round_trips.h"
#include "service/loop/bounded_network.h"
#include "service/peers/channel_hello.h"
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
    // Hello of the service that connected, and what it says of its channel. On success it is sent
    // Self() and the returned number, that of the last message of its that has come. OnGreeted
    // follows at once: the link can carry that channel.
    virtual Result<std::uint64_t> Greet(PeerLink& link, const NodeFacts& facts,
                                        const ChannelHello& channel) = 0;
    virtual void OnGreeted(PeerLink& link) = 0;
  };
  // What the link carries.
  class Traffic {
   public:
    virtual ~Traffic() noexcept(false) = default;
    virtual UnsentMessages& unsent() = 0;
    // The other end has all messages up to that number.
    virtual void OnAcknowledged(std::uint64_t number) = 0;
    // A message, or what is wrong with it, and its number.
    virtual void Receive(std::uint64_t number, const Result<PeerMessage>& message) = 0;
    virtual void OnPong() = 0;
  };
  struct Options {
    capnp::rpc::twoparty::Side side;
    TimeNs ping_every_ns = kSecond / 2;
    std::string name{};  // the node that must answer our hello; empty: any
  };
  // Who answered a hello.
  struct Answer {
    NodeFacts facts;
    std::uint64_t received = 0;  // number of the last of our messages that has come there
  };

  // `owner` and `timer` must outlive the link.
  PeerLink(SecuredPeer peer, Options options, kj::Timer& timer, Owner& owner);
  ~PeerLink() noexcept(false);
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  // The first call of the connecting side: who answered, or why it refuses this node.
  kj::Promise<Result<Answer>> SendHello(const ChannelHello& channel);
  // Once greeted. `traffic` must outlive the link.
  void Carry(Traffic& traffic);
  // There is more to send.
  void Flush();

  // May be called more than once.
  kj::Promise<Error> WhenEnded() { return ended_.addBranch(); }
  void End(const Error& error);

  bool greeted() const { return greeted_; }
  bool encrypted() const { return peer_.encrypted; }
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

  Result<Answer> Read(schema::PeerBootstrap::HelloResults::Reader answer);
  // The other end is known, so messages can be sent.
  void Begin(const NodeFacts& facts, schema::PeerPort::Client port);
  kj::Promise<void> PingAgain();
  void OnPong(std::int64_t asked_unix_ns, TimeNs asked_ns, std::int64_t theirs_unix_ns);
  void taskFailed(kj::Exception&& exception) override;

  SecuredPeer peer_;
  Options options_;
  kj::Timer& timer_;
  Owner& owner_;
  std::string name_;
  bool greeted_ = false;
  Traffic* traffic_ = nullptr;  // null until it carries some
  bool sending_ = false;
  RoundTrips round_trips_;
  kj::Own<kj::PromiseFulfiller<Error>> end_;
  kj::ForkedPromise<Error> ended_ = nullptr;
  // Resolves a moment after Carry: what the other end sends with its answer to our hello may
  // overtake that answer.
  kj::Own<kj::PromiseFulfiller<void>> carry_;
  kj::ForkedPromise<void> carries_ = nullptr;
  schema::PeerPort::Client port_ = nullptr;  // usable once greeted
  kj::Own<Handle> handle_;                   // shared with the capabilities given out
  capnp::TwoPartyVatNetwork network_;
  MessagePacer pace_{kPeerMessagesPerSecond, kPeerMessagesBurst};
  BoundedNetwork bounded_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc_;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
