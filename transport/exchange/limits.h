// What a group may have under way at one time. Pure: each node must come to the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/network.h"

namespace headrace::transport {

// Equal on every node of a group, except the name.
struct ExchangeOptions {
  std::string name = "ucx0";  // of the lane, for errors and tables
  // At most, in bytes. Over TCP, messages that go at once, without being announced first, keep
  // links busier: see README.md for what was measured.
  std::size_t piece_size = std::size_t{96} << 10;
  std::size_t staging_size = std::size_t{128} << 20;  // of a group, at most
  std::uint32_t transfers_max = 32;                   // open at one time, of a group and order
  // Bytes to one peer, over all groups, given to the wire and not sent yet. What else there
  // is waits at the pacer, where jobs' shares are kept: see README.md for what was measured.
  std::size_t peer_bytes_max = std::size_t{384} << 10;
};

// A group has two orders of positions (network.h). Each has a window and slots of its own, so that
// one that waits for another node never holds up the other.
inline constexpr std::size_t kOrdersCount = 2;

constexpr std::size_t OrderOf(std::uint64_t position) {
  return static_cast<std::size_t>(position >> 63);
}

struct GroupLimits {
  // Pieces of an order under way at one time. Every node works through the pieces of all transfers
  // in the same order, so the first piece that is unfinished anywhere is under way everywhere,
  // which is why nothing can wait for itself. See README.md for the servers.
  std::uint32_t window = 0;
  std::uint32_t slots_count = 0;  // of staging, for each order, on the node that needs most
  std::size_t slot_size = 0;      // and the largest piece
  std::size_t held_max = 0;       // messages of honest nodes that can be ahead of this one
};

GroupLimits LimitsOf(const ExchangeOptions& options, std::uint32_t data_count,
                     std::uint32_t servers_count);

}  // namespace headrace::transport
