#include "service/peers/secured_peer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ipc/base/foreign_text.h"

namespace headrace::service {

Status CheckPeerName(const SecuredPeer& peer, std::string_view said) {
  if (!peer.encrypted || std::ranges::find(peer.node_names, said) != peer.node_names.end()) {
    return {};
  }
  return Error(
      Code::kPermissionDenied,
      fmt::format("{} is refused: it calls itself \"{}\", but has the certificate of \"{}\": "
                  "set node_name there to \"{}\", or make a certificate for its name",
                  peer.address, Printable(said, 64), fmt::join(peer.node_names, "\" or \""),
                  peer.node_names.empty() ? "" : peer.node_names.front()));
}

}  // namespace headrace::service
