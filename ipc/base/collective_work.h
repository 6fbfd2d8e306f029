// What a collective asks of the busiest of its members, by algorithm: steps one after the other,
// bytes that it sends or receives, bytes that it sums. Pure. The exchange chooses by it, and the
// planner predicts by it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ipc/base/collective.h"

namespace headrace {

enum class WireAlgorithm : std::uint8_t {
  kDirect,    // everybody sends to whom it is for
  kByOwners,  // direct, but each owns a part: two steps
  kRing,
  kDoubling,         // all at growing distance
  kHalvingDoubling,  // halves at shrinking distance, and back
};
inline constexpr std::array kWireAlgorithms{WireAlgorithm::kDirect, WireAlgorithm::kByOwners,
                                            WireAlgorithm::kRing, WireAlgorithm::kDoubling,
                                            WireAlgorithm::kHalvingDoubling};
std::string_view Name(WireAlgorithm algorithm);

// Multiples of the operation's bytes: of a gather and a scatter those of one member's part, of all
// others everything that one member has.
struct CollectiveWork {
  double steps = 0;
  double sent = 0;
  double summed = 0;
};

// Seconds a byte of an input that is received and summed; a core of a server does 5 to 10 GB/s.
inline constexpr double kSumSecondsPerByte = 0.15e-9;

// Nothing where there is no such algorithm. With one member there is nothing to do.
//
// With a half of halving and doubling among members whose number is no power of two, those above it
// fold in and out.
// Ring: Patarasuk, Yuan, JPDC 2009. Halving and doubling: Rabenseifner, ICCS 2004. All-to-all in
// log2 n steps: Bruck et al., IEEE TPDS 1997.
std::optional<CollectiveWork> WorkOf(Collective kind, WireAlgorithm algorithm,
                                     std::uint32_t members_count);

// Whether the exchange has that algorithm, where no setting forces it to another.
bool IsCarriedOut(Collective kind, WireAlgorithm algorithm);

}  // namespace headrace
