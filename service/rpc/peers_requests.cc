#include "service/rpc/peers_requests.h"

#include <kj/debug.h>

namespace headrace::service {
namespace {

// A name, a port, a handshake and a question, each with five seconds.
constexpr TimeNs kTryTimeout = 25 * kSecond;

kj::Exception TooFarBehind() {
  return KJ_EXCEPTION(OVERLOADED, "peers is behind with its messages");
}

}  // namespace

kj::Promise<Status> PeersRequests::Await(RequestToken token, TimeNs timeout_ns) {
  auto late = timer_.afterDelay(timeout_ns * kj::NANOSECONDS).then([timeout_ns] {
    return Status(
        Error(Code::kTimeout, "the service's peers thread did not answer within " +
                                  std::to_string(timeout_ns / kMillisecond) +
                                  " ms: `headracectl doctor --probe` shows what stands still"));
  });
  return answered_.Add(token).exclusiveJoin(kj::mv(late));
}

kj::Promise<QuorumAnswered> PeersRequests::Ask(AskQuorum request) {
  const RequestToken token = request.token = tokens_.Next();
  if (!outbox_.empty() || !peers_.Send(std::move(request))) {
    return QuorumAnswered{.token = token, .quorum = Behind(), .waits = {}};
  }
  auto late = timer_.afterDelay(kPeersTimeout * kj::NANOSECONDS).then([token] {
    return QuorumAnswered{
        .token = token,
        .quorum = Error(Code::kTimeout, "the service's peers thread did not answer"),
        .waits = {}};
  });
  return quorums_.Add(token).exclusiveJoin(kj::mv(late));
}

kj::Promise<std::vector<PeerView>> PeersRequests::List() {
  const RequestToken token = tokens_.Next();
  if (!peers_.Send(ListPeers{token})) return TooFarBehind();
  return timer_.timeoutAfter(kPeersTimeout * kj::NANOSECONDS, listed_.Add(token));
}

kj::Promise<std::vector<PeerStep>> PeersRequests::Try(std::string address) {
  const RequestToken token = tokens_.Next();
  if (!peers_.Send(TryPeer{.token = token, .address = std::move(address)})) return TooFarBehind();
  return timer_.timeoutAfter(kTryTimeout * kj::NANOSECONDS, tried_.Add(token));
}

}  // namespace headrace::service
