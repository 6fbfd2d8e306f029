// The objects on the peers thread: the connections with their rules, users' setting changes, and
// the inbox by which they are reached.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>

#include <string>

#include "service/loop/inbox_reader.h"
#include "service/loop/outbox.h"
#include "service/peers/job_settings.h"
#include "service/peers/peers.h"
#include "service/peers/peers_options.h"

namespace headrace::service {

class PeersActor final : private kj::TaskSet::ErrorHandler {
 public:
  // All outlive this.
  PeersActor(const PeerOptions& options, const PeersPorts& ports, kj::AsyncIoContext& io);
  ~PeersActor() noexcept(false);

  // Before Serve. The error names the address or the file and what to do.
  Status Listen(kj::AsyncIoContext& io);
  unsigned port() const { return peers_->port(); }

  // Until `stop` resolves.
  kj::Promise<void> Serve(kj::Promise<void> stop);

 private:
  void Handle(const CheckRank& message);
  void Handle(const CheckCertificate& message);
  void Handle(const HandInLayout& message);
  void Handle(const ChangeSetting& message);
  void Handle(const ListPeers& message);
  void Handle(const TryPeer& message);
  void Handle(const DrainPeers& message);
  void Handle(const StopPeers& message);
  void Handle(const Ping& message);
  // What is left is for the connections' rules.
  template <typename Message>
  void Handle(const Message& message) {
    peers_->Handle(message);
  }

  void Answer(RequestToken token, Status status);
  void taskFailed(kj::Exception&& exception) override;

  const PeerOptions& options_;
  const PeersPorts& ports_;
  Outbox outbox_;
  kj::Own<Peers> peers_;
  kj::Own<JobSettings> settings_;
  InboxReader<PeersMessage> reader_;
  kj::TaskSet tasks_;
};

}  // namespace headrace::service
