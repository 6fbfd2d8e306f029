// Keeps the channel to one leader: connects with growing delays for as long as this object lives. A
// leader that is reached on several rails has an address on each; they are tried in turn, beginning
// with the one where it was reached last. While there is a channel whose connection broke, or does
// not answer, they are tried all at once. Used on the peers thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <string>
#include <vector>

#include "ipc/base/result.h"
#include "service/peers/peer_channel.h"
#include "service/peers/peer_link.h"
#include "service/peers/peer_reach.h"
#include "service/rpc/messages.h"

namespace headrace::service {

class PeerDialer final : public PeerLink::Owner,
                         public PeerChannel::Owner,
                         private kj::TaskSet::ErrorHandler {
 public:
  // The user of the connection, which is told of its state.
  class Owner {
   public:
    virtual ~Owner() noexcept(false) = default;
    virtual const NodeFacts& Self() const = 0;
    virtual void OnLeaderUp(const std::string& leader) = 0;
    // Connecting failed and is retried; or the leader refuses this node, and it is not.
    virtual void OnLeaderUnreachable(const std::string& leader, const std::string& cause) = 0;
    virtual void OnLeaderRefused(const std::string& leader, const Error& error) = 0;
    // The channel goes on over another connection; what happened, for people.
    virtual void OnLeaderResumed(const std::string& leader, const std::string& happened) = 0;
    virtual void OnLeaderDown(const std::string& leader, const Error& error) = 0;
    virtual void OnLeaderMessage(const std::string& leader, const PeerMessage& message) = 0;
  };
  struct Options {
    std::string leader;                  // name of the leader, as the ranks gave it
    std::vector<std::string> addresses;  // to connect to, at least one
    std::string name{};                  // expected node name; empty: any that its certificate has
    bool uses_rails = true;  // also the addresses of its rails, which the leader says itself
    TimeNs detection_ns = 3 * kSecond;
  };

  // All must outlive this.
  PeerDialer(Options options, Owner& owner, PeerSecurity& security, kj::Network& network,
             kj::Timer& timer);
  ~PeerDialer() noexcept(false) override;

  void Send(const PeerMessage& message);
  kj::Promise<void> Finish(const std::string& cause);
  // Finish, and from now on the owner is not called any more.
  kj::Promise<void> Leave(const std::string& cause);
  PeerView View() const;
  // Those known by now; the first is the one to which it connects, or connected last.
  const std::vector<std::string>& addresses() const { return options_.addresses; }

  // Whether the connection is needed. One that is not needed is destroyed soon.
  bool needed = true;

 private:
  const NodeFacts& Self() const override;
  Result<std::uint64_t> Greet(PeerLink& link, const NodeFacts& facts,
                              const ChannelHello& channel) override;
  void OnGreeted(PeerLink& link) override;
  void OnMessage(PeerChannel& channel, const PeerMessage& message) override;
  void OnLinkNeeded(PeerChannel& channel) override;

  kj::Promise<void> Try();
  kj::Promise<void> TryAgainLater();
  kj::Promise<kj::Own<kj::AsyncIoStream>> Connect();
  // Fails when the answer takes longer than a peer may be silent, or than that: one whose process
  // stands still accepts connections all the same.
  template <typename Value>
  kj::Promise<Value> Bound(kj::Promise<Value> answer, TimeNs within_ns = 0);
  // Says hello on a new link.
  kj::Promise<Result<PeerLink::Answer>> Introduce(SecuredPeer peer, const ChannelHello& hello);
  kj::Promise<void> Begin(SecuredPeer peer);
  // Resolves when the channel is lost.
  kj::Promise<void> Serve();
  // Until the channel has a link that answers, or is lost.
  kj::Promise<void> Redial();
  // After a moment, and at that address only if no other answers.
  kj::Promise<void> RedialWithout(const std::string& address);
  kj::Promise<void> Resume(PeerReach::Reached reached);
  std::vector<std::string> AddressesToTry() const;
  void OnUnreachable(const std::string& why);
  void Learn(const NodeFacts& facts);
  // The next attempt goes to the next address.
  void UseNextAddress();
  void OnRefused(const Error& error);
  void taskFailed(kj::Exception&& exception) override;

  Options options_;
  Owner& owner_;
  PeerSecurity& security_;
  kj::Network& network_;
  kj::Timer& timer_;
  kj::Duration delay_;
  TimeNs name_taken_since_ns_ = kNever;
  std::string why_;               // why there is no channel; empty while there is one
  kj::Own<PeerChannel> channel_;  // null while there is none
  kj::Own<PeerLink> link_;        // says hello now; null while none does
  bool left_ = false;
  bool redials_ = false;
  TimeNs resumed_ns_ = -kSecond;
  std::string unanswered_;  // address where no hello was answered, or another node; empty: none
  kj::Own<PeerReach> reach_;
  kj::Promise<void> redial_ = nullptr;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
