// Stands for tls.cc until that is there: plain text only.
#include "service/control/tls.h"

namespace headrace::service {

class PeerSecurity::Parts {};

PeerSecurity::PeerSecurity(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
PeerSecurity::~PeerSecurity() = default;

Status CheckPeerName(const SecuredPeer& peer, std::string_view said) {
  if (peer.node_name.empty() || peer.node_name == said) return {};
  return Error(Code::kPermissionDenied, "the peer calls itself otherwise than its certificate");
}

Result<std::unique_ptr<PeerSecurity>> PeerSecurity::Create(const PeerSecurityOptions&, kj::Timer&,
                                                           Say) {
  return std::unique_ptr<PeerSecurity>(new PeerSecurity(std::make_unique<Parts>()));
}

kj::Promise<Result<SecuredPeer>> PeerSecurity::Accept(kj::Own<kj::AsyncIoStream> stream) {
  return Result<SecuredPeer>(
      SecuredPeer{.stream = kj::mv(stream), .address = "a stranger", .node_name = {}});
}

kj::Promise<Result<SecuredPeer>> PeerSecurity::Connect(kj::Own<kj::AsyncIoStream> stream,
                                                       std::string known_as) {
  return Result<SecuredPeer>(
      SecuredPeer{.stream = kj::mv(stream), .address = std::move(known_as), .node_name = {}});
}

std::string PeerSecurity::Describe() const { return "plain text"; }

kj::Promise<void> PeerSecurity::RemindOfPlainText() { return kj::NEVER_DONE; }

}  // namespace headrace::service
