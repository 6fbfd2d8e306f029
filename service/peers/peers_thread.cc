#include "service/peers/peers_thread.h"

#include <utility>

#include "service/loop/loop_thread.h"
#include "service/peers/peer_listener.h"
#include "service/peers/peers_actor.h"

namespace headrace::service {

// A service is looked for at the addresses of its rails and at that of its node.
static_assert(kPeerDescriptorsMax ==
              kPeerConnectionsMax + kHandshakesMax + kReachesMax * (kRailsConfiguredMax + 1));

PeerSecurityOptions SecurityOptionsOf(const PeerOptions& options) {
  return {.node_name = options.node_name,
          .authority_path = options.tls_authority,
          .certificate_path = options.tls_certificate,
          .key_path = options.tls_key,
          .plain_text = options.plain_text};
}

PeersThread::PeersThread() = default;
PeersThread::~PeersThread() = default;

Result<std::unique_ptr<PeersThread>> PeersThread::Start(PeerOptions options, PeersPorts ports) {
  std::unique_ptr<PeersThread> made(new PeersThread);
  auto thread = LoopThread::Start(
      "hr-peers", [options = std::move(options), ports = std::move(ports), port = &made->port_](
                      kj::AsyncIoContext& io, kj::Promise<void> stop,
                      const std::function<void(Status)>& started) {
        PeersActor actor(options, ports, io);
        if (Status status = actor.Listen(io); !status) return started(std::move(status));
        *port = actor.port();
        started({});
        actor.Serve(kj::mv(stop)).wait(io.waitScope);
      });
  if (!thread) return thread.error();
  made->thread_ = std::move(thread).value();
  return made;
}

}  // namespace headrace::service
