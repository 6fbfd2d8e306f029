// The messages between two services, in order, each of them once, over one connection after
// another. Used on the peers thread only.
//
// Each end numbers its messages and keeps them until the other end has answered the call that they
// went in. When the connection breaks, or has not answered for half of the detection time, the end
// that opened it opens another, at any address of the other end; the hello says in both directions
// which message has come last, and what is missing is sent again. Nobody above notices.
//
// A channel is lost once, with the first cause, and WhenLost resolves then:
//  - nothing was answered for the detection time, with or without a connection;
//  - a connection broke, which a network that is cut does not do by itself, and nobody answers at
//    any address of the other end: at once when all of them refuse connections, since its machine
//    says so then, else within LinkGrace;
//  - a connection broke when this process had been stopped for the detection time: the other end
//  has
//    given the channel up;
//  - the other end does not know the channel: it is another instance of the service;
//  - more waits than may (UnsentMessages), or the other end does what no honest one does;
//  - kBreaksMax connections in a row broke before the same message was acknowledged;
//  - the other end said goodbye, or this one.
// So whatever ends a service is noticed as early as it would be without channels.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/cluster/heartbeat.h"
#include "service/cluster/peer_messages.h"
#include "service/peers/channel_hello.h"
#include "service/peers/peer_link.h"
#include "service/peers/unsent_messages.h"
#include "service/rpc/messages.h"

namespace headrace::service {

// How long after a break some address of the other end must have answered. By then its next ping
// has shown the break to it, too, so that it has come back if it lives.
inline constexpr TimeNs kLinkGraceMax = 250 * kMillisecond;  // beyond the interval of pings
constexpr TimeNs LinkGrace(TimeNs detection_ns) {
  const TimeNs interval_ns = detection_ns / 6;
  return interval_ns + (interval_ns < kLinkGraceMax ? interval_ns : kLinkGraceMax);
}

inline constexpr std::uint32_t kBreaksMax = 8;  // in a row, without any progress

class PeerChannel final : public PeerLink::Traffic, private kj::TaskSet::ErrorHandler {
 public:
  // Must not destroy the channel within a call.
  class Owner {
   public:
    virtual ~Owner() noexcept(false) = default;
    virtual void OnMessage(PeerChannel& channel, const PeerMessage& message) = 0;
    // Its connection broke, or does not answer.
    virtual void OnLinkNeeded(PeerChannel& channel) = 0;
  };
  // What a resumed channel did without.
  struct Breaks {
    std::uint64_t count = 0;
    TimeNs time_ns = 0;  // in all, from what was answered last or from the break
    TimeNs last_ns = 0;
  };

  // `timer` and `owner` must outlive it.
  PeerChannel(const ChannelId& id, TimeNs detection_ns, kj::Timer& timer, Owner& owner);
  ~PeerChannel() noexcept(false) override;
  PeerChannel(const PeerChannel&) = delete;
  PeerChannel& operator=(const PeerChannel&) = delete;

  const ChannelId& id() const { return id_; }
  // For the hello of its next connection, at the end that connects.
  ChannelHello Hello() const;
  // The other end has said hello, or has answered one, and that it has the messages up to that
  // number: this end's former connection is closed. Returns the number of the last message that has
  // come. kCorrupt if the other end cannot have so many; the channel is lost then.
  Result<std::uint64_t> Resume(std::uint64_t acknowledged);
  // After Resume, or as the first. The link is greeted. Returns what happened since the former one
  // answered last, for people; empty for the first.
  std::string Attach(kj::Own<PeerLink> link);
  bool NeedsLink() { return lost_->isWaiting() && (link_.get() == nullptr || quiet_); }
  // After OnLinkNeeded: the other end's service has answered at one of its addresses, so it lives.
  void OnReached() { reached_ = true; }
  bool reached() const { return reached_; }
  // All of its addresses refuse connections.
  void OnRefused();
  // The other end does not know the channel, or refuses to go on with it.
  void OnUnknown(const Error& error);

  void Send(PeerMessage message);
  // Sends Goodbye, once, and resolves when the other end has received it or there is no connection.
  kj::Promise<void> Finish(const std::string& cause);
  kj::Promise<Error> WhenLost() { return kj::mv(when_lost_); }
  void End(const Error& error);

  bool linked() const { return link_.get() != nullptr; }
  // Whether it was lost because nothing was answered.
  bool silent() const { return silent_; }
  // Name of the other end's node, once it has had a connection.
  const std::string& peer_name() const { return peer_name_; }
  // Where the other end of its connection is, or was.
  const std::string& peer_address() const { return peer_address_; }
  // Why there is no connection now; empty while there is one.
  std::string why() const { return cause_ && !linked() ? cause_->text() : std::string(); }
  // What people see of it.
  void Show(PeerView& view) const;
  const Breaks& breaks() const { return breaks_; }
  std::size_t waiting_count() const { return unsent_.size(); }

 private:
  UnsentMessages& unsent() override { return unsent_; }
  void OnAcknowledged(std::uint64_t number) override;
  void Receive(std::uint64_t number, const Result<PeerMessage>& message) override;
  void OnPong() override;

  // By the timer.
  TimeNs Now() const { return (timer_.now() - kj::origin<kj::TimePoint>()) / kj::NANOSECONDS; }
  void OnLinkEnded(const Error& error);
  // Whether the message that is under way has broken too many connections.
  bool IsStuck();
  void CloseLink();
  kj::Promise<void> Watch();
  void taskFailed(kj::Exception&& exception) override;

  ChannelId id_;
  TimeNs detection_ns_;
  kj::Timer& timer_;
  Owner& owner_;
  UnsentMessages unsent_;
  ReceivedNumbers received_;
  Heartbeat heartbeat_;
  std::string peer_;  // "node b"
  std::string peer_name_;
  std::string peer_address_;
  kj::Own<PeerLink> link_;   // null while there is none
  std::uint64_t links_ = 0;  // so many it had; the number of the current one
  bool quiet_ = false;       // the link has not answered for half of the detection time
  bool reached_ = false;     // since the last break
  bool silent_ = false;
  bool finishing_ = false;
  std::uint64_t stuck_at_ = 0;  // the message that was under way at the last break; 0: none
  std::uint32_t stuck_ = 0;     // in so many breaks
  std::optional<Error> cause_;  // of the last break, until it is resumed
  std::string outage_;          // what it began with
  TimeNs since_ns_ = kNever;    // when there was a link that answered, while there is none
  Breaks breaks_;
  kj::Own<kj::PromiseFulfiller<Error>> lost_;
  kj::Promise<Error> when_lost_ = nullptr;
  kj::Own<kj::PromiseFulfiller<void>> all_sent_;  // null unless Finish waits for it
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
