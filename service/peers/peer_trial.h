// Tries to connect to the service at an address as for a job and reports each step, for
// `headracectl doctor --peer`. Changes nothing on either side.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <string>
#include <vector>

#include "service/peers/tls.h"
#include "service/rpc/messages.h"

namespace headrace::service {

// The steps are the resolution of the name, the TCP connection, the handshake and the version, up
// to the first that fails. The promise never fails and resolves within about 20 s. `security`,
// `network` and `timer` must outlive it.
kj::Promise<std::vector<PeerStep>> TryToReach(const std::string& address, PeerSecurity& security,
                                              kj::Network& network, kj::Timer& timer);

}  // namespace headrace::service
