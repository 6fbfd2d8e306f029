// The connection to one leader: made again and again, ever less often, for as long as this lives.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <string>

#include "ipc/base/result.h"
#include "service/actor/messages.h"
#include "service/peers/peer_link.h"

namespace headrace::service {

class Peers;

class PeerDialer final : public PeerLink::Owner, private kj::TaskSet::ErrorHandler {
 public:
  struct Options {
    std::string leader;   // as the ranks call it
    std::string address;  // where it is
    std::string name{};   // of its node; empty: whatever it says and its certificate has
    TimeNs detection_ns = 3 * kSecond;
  };

  // All outlive this.
  PeerDialer(Options options, Peers& peers, PeerSecurity& security, kj::Network& network,
             kj::Timer& timer);

  void Tell(const PeerMessage& message);
  kj::Promise<void> Finish(const std::string& cause);
  PeerView View() const;

  // Whether someone needs it; one that nobody needs is destroyed soon.
  bool needed = true;

 private:
  const NodeFacts& Self() const override;
  Status Greet(PeerLink& link, const NodeFacts& facts) override;
  void Told(PeerLink& link, const PeerMessage& message) override;

  kj::Promise<void> Try();
  kj::Promise<void> TryAgainLater();
  kj::Promise<kj::Own<kj::AsyncIoStream>> Connect();
  kj::Promise<void> Introduce(SecuredPeer peer);
  // Until the link ends.
  kj::Promise<void> Serve();
  void Silent(const std::string& why);
  void Refused(const Error& error);
  void taskFailed(kj::Exception&& exception) override;

  Options options_;
  Peers& peers_;
  PeerSecurity& security_;
  kj::Network& network_;
  kj::Timer& timer_;
  kj::Duration delay_;
  TimeNs name_taken_since_ns_ = kNever;
  std::string why_;         // there is no connection; empty while there is
  kj::Own<PeerLink> link_;  // null while there is none
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
