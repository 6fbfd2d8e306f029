// A connection to another service whose identity is verified.
#pragma once

#include <kj/async-io.h>

#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"

namespace headrace::service {

// A verified peer, or one without TLS where that is allowed.
struct SecuredPeer {
  kj::Own<kj::AsyncIoStream> stream;
  std::string address;  // for texts: "10.0.0.2:4711"
  // The node names of its certificate; empty without TLS.
  std::vector<std::string> node_names;
  bool encrypted = false;
};

// Refuses a peer whose name is not in its certificate.
Status CheckPeerName(const SecuredPeer& peer, std::string_view said);

}  // namespace headrace::service
