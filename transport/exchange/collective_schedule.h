// The messages and sums of one node for one piece of a transfer, in their order.
//
// A schedule is a list of rounds. All messages of a round are in flight together. When all have
// ended, and the round's sum is made if it has one, the next round begins. Round numbers are the
// same on every node of a piece, so that they identify a message to sender and receiver. A node's
// schedule skips rounds in which it has nothing to do. Pure: every node can compute the schedule of
// another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/network.h"

namespace headrace::transport {

// How a transfer's pieces move. Members with data are 0 .. data - 1; the servers follow.
enum class Pattern : std::uint8_t {
  kExchange,          // all_reduce: everybody sends all to everybody, each sums
  kDoubling,          // all_reduce: pairs at growing distance
  kScatter,           // all_reduce: the owner sums what all send, and sends the sum to all; of a
                      // reduce_scatter only the first, of an all_gather the second
  kRing,              // all_reduce: round to the owner, summed on the way, and round again
  kServed,            // all_reduce and reduce: as kScatter, but the owner is a server
  kToRoot,            // reduce: all send to the root, which sums
  kFromRoot,          // broadcast: the root sends to all
  kFromRootByOwners,  // broadcast: the root sends to the owner, which sends to the others
  kBarrier,           // nothing but word of each other
};

struct PieceSpec {
  Pattern pattern = Pattern::kBarrier;
  Collective kind = Collective::kBarrier;
  std::uint32_t data_count = 1;  // members with data
  std::uint32_t self = 0;
  std::uint32_t root = 0;   // of reduce and broadcast
  std::uint32_t owner = 0;  // of the piece, where the pattern has owners
};

struct Round {
  std::uint8_t number = 0;
  bool staged = false;  // what is received is summed when the round ends; else it is the result
  bool last = false;    // the sum is the final one
  bool empty = false;   // the messages carry no bytes
  std::uint8_t peers_begin =
      0;  // in CollectiveSchedule::peers: first those to send to, then, growing, those
  std::uint8_t sends_count = 0;  // to receive from
  std::uint8_t receives_count = 0;
};

// At most 2: a fold and a result beside log2(kNodesMax) steps.
inline constexpr std::size_t kRoundsMax = 8;
inline constexpr std::size_t kSchedulePeersMax = 2 * std::size_t{kNodesMax};

struct CollectiveSchedule {
  std::array<Round, kRoundsMax> rounds{};
  std::uint8_t rounds_count = 0;
  std::array<std::uint8_t, kSchedulePeersMax> peers{};
  std::uint8_t peers_count = 0;
  std::uint8_t staged_max = 0;  // messages in staging at one time

  std::span<const Round> Rounds() const { return {rounds.data(), rounds_count}; }
  std::span<const std::uint8_t> Sends(const Round& round) const {
    return {peers.data() + round.peers_begin, round.sends_count};
  }
  std::span<const std::uint8_t> Receives(const Round& round) const {
    return {peers.data() + round.peers_begin + round.sends_count, round.receives_count};
  }

  // Where a message is received: the place of its round in the list, and its own in the round.
  struct Spot {
    std::size_t round = 0;
    std::size_t receive = 0;
  };
  std::optional<Spot> FindReceive(std::uint8_t round_number, std::uint16_t sender) const;
};

// Sets of members: bit i is member i.
constexpr std::uint64_t MemberBit(std::size_t member) { return std::uint64_t{1} << member; }

CollectiveSchedule MakeSchedule(const PieceSpec& spec);

}  // namespace headrace::transport
