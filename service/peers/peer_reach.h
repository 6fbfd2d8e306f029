// Reaches one service at any of its addresses: all of them are tried at once, each again and again,
// until one answers or this object is destroyed. Used on the peers thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <cstddef>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "service/peers/tls.h"

namespace headrace::service {

class PeerReach final : private kj::TaskSet::ErrorHandler {
 public:
  struct Options {
    std::string known_as;  // the service, for PeerSecurity::Connect
    std::vector<std::string> addresses;
    TimeNs attempt_ns;  // an attempt that takes longer begins again
  };
  struct Reached {
    SecuredPeer peer;
    std::string address;  // of the options
  };

  // All must outlive it.
  PeerReach(Options options, PeerSecurity& security, kj::Network& network, kj::Timer& timer);

  // Resolves with the first address where a service answered the greeting, or the handshake of TLS.
  // kUnavailable as soon as connections were refused at all of them: no service is there. To be
  // called once.
  kj::Promise<Result<Reached>> Answered() { return kj::mv(answered_); }

 private:
  kj::Promise<void> Attempt(std::size_t index);
  kj::Promise<Result<SecuredPeer>> Connect(std::size_t index);
  void taskFailed(kj::Exception&& exception) override;

  Options options_;
  PeerSecurity& security_;
  kj::Network& network_;
  kj::Timer& timer_;
  std::vector<bool> refused_;  // whether the last attempt at each address was
  kj::Own<kj::PromiseFulfiller<Result<Reached>>> answer_;
  kj::Promise<Result<Reached>> answered_ = nullptr;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
