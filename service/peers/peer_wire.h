// Peer messages as they go over the network. What is read is checked field by field: names, codes,
// sizes and numbers that go beyond limits, times that are no times.
#pragma once

#include <cstddef>

#include "ipc/base/result.h"
#include "ipc/schema/peer.capnp.h"
#include "service/cluster/peer_messages.h"

namespace headrace::service {

inline constexpr std::size_t kLanesMax = 16;  // between nodes, of a service

void WriteHello(schema::PeerHello::Builder hello, const NodeFacts& facts);
Result<NodeFacts> ReadHello(schema::PeerHello::Reader hello);

void WriteMessage(schema::PeerMessage::Builder builder, const PeerMessage& message);
Result<PeerMessage> ReadMessage(schema::PeerMessage::Reader reader);

}  // namespace headrace::service
