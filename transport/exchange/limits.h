// Limits of what a group may have in flight. Pure: all nodes must compute the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/network.h"

namespace headrace::transport {

class DeviceCodec;

// Equal on every node of a group, except the name and the codec of GPUs.
struct ExchangeOptions {
  std::string name = "ucx0";  // of the lane, for errors and tables
  // At most, in bytes. Over TCP, messages that go at once, without being announced first, keep
  // links busier: see README.md for what was measured.
  std::size_t piece_size = std::size_t{96} << 10;
  // A group has so much at most; where GPUs encode, a 256th and 64 bytes a slot more.
  std::size_t staging_size = std::size_t{128} << 20;
  std::uint32_t transfers_max = 32;  // open at one time, of a group and order
  // Bytes to one peer, over all groups, given to the wire and not sent yet. What else there
  // is waits at the pacer, where jobs' shares are kept: see README.md for what was measured.
  std::size_t peer_bytes_max = std::size_t{384} << 10;
  // For transfers whose memory is a GPU's; used by nobody else. Null: there are none.
  std::shared_ptr<DeviceCodec> device_codec = nullptr;  // owners: the exchange and its groups
};

// A group has three orders of positions (network.h), of which one that waits for another node never
// holds up the others. Every position belongs to one transfer, whatever its order, so nodes that
// mean different transfers by it find out.
enum class PositionOrder : std::uint8_t { kSums, kCopies, kPlanned };
inline constexpr std::size_t kOrdersCount = 3;
// What is set aside for sums and copies together, and as much for a plan.
inline constexpr std::size_t kBudgetsCount = 2;

constexpr PositionOrder OrderOf(std::uint64_t position, Collective kind) {
  if ((position & kPlannedPosition) != 0) return PositionOrder::kPlanned;
  return kind == Collective::kBroadcast ? PositionOrder::kCopies : PositionOrder::kSums;
}

struct GroupLimits {
  // Pieces of an order under way at one time. Every node works through the pieces of all transfers
  // of an order alike, so the first piece that is unfinished anywhere is under way everywhere,
  // which is why nothing can wait for itself. See README.md for the servers.
  std::uint32_t window = 0;
  // Shared by sums and copies. Each of them has the difference to `window` for itself, so that it
  // can go on however many the other one has.
  std::uint32_t shared_window = 0;
  std::uint32_t slots_count = 0;  // of staging, for each budget, on the node that needs most
  std::size_t slot_size = 0;      // the largest piece
  // The largest message, and a slot of staging: a piece, and where there are servers its tail.
  std::size_t message_size_max = 0;
  std::size_t held_max = 0;  // messages of honest nodes that can be ahead of this one
};

GroupLimits LimitsOf(const ExchangeOptions& options, std::uint32_t data_count,
                     std::uint32_t servers_count);

}  // namespace headrace::transport
