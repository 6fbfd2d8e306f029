// About how many bytes a message takes on the wire: exact to a few hundred where it is long.
#pragma once

#include <cstddef>

#include "service/cluster/peer_messages.h"

namespace headrace::service {

std::size_t WireBytes(const PeerMessage& message);

}  // namespace headrace::service
