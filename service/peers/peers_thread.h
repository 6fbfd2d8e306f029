// The peers actor: other services, and what is decided about jobs beyond one rank's calls (who
// takes part, their layouts, plans and settings), on an event loop and a thread of its own. Nothing
// that a local client or an HTTP client sends runs there, so none of them can delay a heartbeat.
//
// It is reached only by its inbox, and speaks to other actors by their inboxes.
#pragma once

#include <cstdint>
#include <memory>

#include "ipc/base/result.h"
#include "service/peers/peers_options.h"

namespace headrace::service {

class LoopThread;

// What its connections take of the process's descriptors at most, besides a few of its own.
inline constexpr std::uint64_t kPeerDescriptorsMax = 384;

class PeersThread {
 public:
  // Listens at the options' address, unless there is none, and serves from then on.
  static Result<std::unique_ptr<PeersThread>> Start(PeerOptions options, PeersPorts ports);

  ~PeersThread();

  // The TCP port that other services reach; 0: none.
  unsigned port() const { return port_; }
  LoopThread& thread() { return *thread_; }

 private:
  PeersThread();

  unsigned port_ = 0;
  std::unique_ptr<LoopThread> thread_;
};

}  // namespace headrace::service
