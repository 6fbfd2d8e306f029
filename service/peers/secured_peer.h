// A connection to another service, once it is known who is there.
#pragma once

#include <kj/async-io.h>

#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"

namespace headrace::service {

// A peer that may be spoken to.
struct SecuredPeer {
  kj::Own<kj::AsyncIoStream> stream;
  std::string address;  // for people: "10.0.0.2:4711"
  // What it may call itself by its certificate; empty in plain text, where nobody vouches for it.
  std::vector<std::string> node_names;
  bool encrypted = false;
};

// Refuses a peer that calls itself otherwise than its certificate does.
Status CheckPeerName(const SecuredPeer& peer, std::string_view said);

}  // namespace headrace::service
