// Which ranks have posted something that several ranks of the node post: an operation, a gradient
// in one iteration, a send with its receive. Plain data.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ipc/base/clock.h"
#include "transport/transport.h"

namespace headrace::service {

using RankMask = std::uint64_t;
static_assert(transport::kMembersMax == 64, "a RankMask has one bit per rank");

constexpr RankMask Bit(std::uint32_t rank) { return RankMask{1} << rank; }

struct Posts {
  RankMask among = ~RankMask{0};  // who posts it: of a pair two ranks, as far as they are known
  RankMask ranks = 0;             // that have posted it
  RankMask awaited = 0;           // of those: ranks whose GPU has not come so far
  TimeNs opened_ns = 0;           // since when others wait for it
  TimeNs deadline_ns = kNever;

  // Ranks whose memory is ready.
  RankMask ready() const { return ranks & ~awaited; }
  bool Has(std::uint32_t rank) const { return (ranks & Bit(rank)) != 0; }
  bool Awaits(std::uint32_t rank) const { return (awaited & Bit(rank)) != 0; }
  // What others wait for is waited for since the first rank was ready.
  void MarkReady(std::uint32_t rank, TimeNs now) {
    if (ready() == 0) opened_ns = now;
    awaited &= ~Bit(rank);
  }
  void Postpone(TimeNs by_ns) {
    if (deadline_ns != kNever) deadline_ns += by_ns;
  }
};

}  // namespace headrace::service
