// Writes peer messages to the network and reads them. Reading checks each field: names, codes,
// sizes, limits of numbers, and times. Any thread.
#pragma once

#include <cstddef>

#include "ipc/base/result.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/peer_messages.h"

namespace headrace::service {

inline constexpr std::size_t kLanesMax = 16;  // limit of a service's lanes between nodes

void WriteHello(schema::PeerHello::Builder hello, const NodeFacts& facts);
Result<NodeFacts> ReadHello(schema::PeerHello::Reader hello);

void WriteMessage(schema::PeerMessage::Builder builder, const PeerMessage& message);
Result<PeerMessage> ReadMessage(schema::PeerMessage::Reader reader);

}  // namespace headrace::service
