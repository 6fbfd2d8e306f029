// One attempt to reach the service at an address, as a job's dialer would, reported step by step:
// for people who look before the first job. Leaves nothing behind on either side.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <string>
#include <vector>

#include "service/peers/tls.h"
#include "service/rpc/messages.h"

namespace headrace::service {

// The steps are the name's resolution, the port, the handshake and the other's version, up to the
// first that fails. Never fails itself, and resolves within about 20 s. `security`, `network` and
// `timer` outlive the promise.
kj::Promise<std::vector<PeerStep>> TryToReach(const std::string& address, PeerSecurity& security,
                                              kj::Network& network, kj::Timer& timer);

}  // namespace headrace::service
