// The approximate size of a message on the wire in bytes, exact to a few hundred for long messages.
#pragma once

#include <cstddef>

#include "service/cluster/peer_messages.h"

namespace headrace::service {

std::size_t WireBytes(const PeerMessage& message);

}  // namespace headrace::service
