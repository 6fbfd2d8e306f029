// Finds the member that an open collective waits for, from the messages that have arrived. Used for
// late collectives only, because an answer may take as long as a sum.
//
// Part of Collectives, on the lane's thread. Changes nothing.
#pragma once

#include <cstdint>

#include "transport/exchange/held.h"
#include "transport/exchange/open_collectives.h"
#include "transport/exchange/waits.h"
#include "transport/exchange/wire.h"
#include "transport/network.h"

namespace headrace::transport {

class CollectiveWaits {
 public:
  // All outlive it.
  CollectiveWaits(const OpenCollectives& open, const HeldMessages& held, const Wire& wire,
                  const GroupOptions& options)
      : open_(open), held_(held), wire_(wire), options_(options) {}

  // The members, a bit each. `stuck`: those to which the pacer could send nothing for a while.
  std::uint64_t Missing(const OpenCollective& collective, std::uint64_t stuck) const;

 private:
  PieceView ViewOf(const OpenCollective& collective, std::uint32_t piece) const;
  void AddEvidence(const OpenCollective& collective, const OpenPiece& piece,
                   WaitQuery& query) const;
  void AddHeld(const OpenCollective& collective, WaitQuery& query) const;
  void Ask(const OpenCollective& collective, const OpenPiece& piece, std::uint64_t stuck,
           WaitQuery& query) const;

  const OpenCollectives& open_;
  const HeldMessages& held_;
  const Wire& wire_;
  const GroupOptions& options_;
};

}  // namespace headrace::transport
