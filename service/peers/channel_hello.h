// What a hello says of the channel that a connection is to carry. Any thread.
#pragma once

#include <array>
#include <cstdint>

#include "ipc/base/result.h"
#include "ipc/schema/peer.capnp.h"

namespace headrace::service {

// Names a channel to its two ends and proves to the accepting one that it speaks with the other:
// drawn by the connecting end, sent to nobody else, and not shown to anybody.
using ChannelId = std::array<std::uint8_t, 16>;

struct ChannelHello {
  ChannelId id{};
  bool resumes = false;        // the channel was there before this connection
  std::uint64_t received = 0;  // number of the last message that has come from the accepting end
};

// From the system's source of randomness.
ChannelId DrawChannelId();
// In a time that does not depend on where they differ.
bool IsSame(const ChannelId& one, const ChannelId& other);

void WriteChannel(schema::PeerChannel::Builder channel, const ChannelHello& hello);
// kCorrupt if it is none.
Result<ChannelHello> ReadChannel(schema::PeerChannel::Reader channel);

}  // namespace headrace::service
