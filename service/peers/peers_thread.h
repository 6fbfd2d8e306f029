// The peers actor: the connections to other services and all decisions about jobs of several ranks
// (members, layouts, plans, settings), on a thread with an event loop of its own. Requests of local
// clients and HTTP clients are not handled there, so they cannot delay a heartbeat.
//
// Other actors reach it only by its inbox, and it reaches them by theirs.
#pragma once

#include <cstdint>
#include <memory>

#include "ipc/base/result.h"
#include "service/peers/peers_options.h"

namespace headrace::service {

class LoopThread;

// Limit of file descriptors for its connections, besides a few of its own.
inline constexpr std::uint64_t kPeerDescriptorsMax = 456;

class PeersThread {
 public:
  // Listens at the options' address, if there is one, and serves from then on.
  static Result<std::unique_ptr<PeersThread>> Start(PeerOptions options, PeersPorts ports);

  ~PeersThread();

  // The TCP port for other services; 0 if there is none.
  unsigned port() const { return port_; }
  LoopThread& thread() { return *thread_; }

 private:
  PeersThread();

  unsigned port_ = 0;
  std::unique_ptr<LoopThread> thread_;
};

}  // namespace headrace::service
