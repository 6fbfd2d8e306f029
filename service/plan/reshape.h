// Drafts from drafts: blocks cut into pieces, so that the lanes of a pipeline work side by side, or
// joined, so that startups are saved. Blocks are whole ones, in the draft's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "service/plan/cost.h"
#include "service/plan/draft.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// A copy in which `count` blocks from `at` on are made one, and that one is cut in two if `halve`.
// Parts stand input first in the result, so that of two halves the first is needed first.
Draft Rewritten(const Workload& work, const Draft& draft, std::size_t at, std::size_t count,
                bool halve);

// Cuts every block into that many equal pieces.
Draft Pieces(const Workload& work, const Draft& draft, std::uint64_t count);

// Cuts every block of more than `bytes_max` into equal pieces of at most that.
Draft Capped(const Workload& work, const Draft& draft, double bytes_max);

// Joins neighbours until every block but the last has `bytes_min`.
Draft Joined(const Draft& draft, double bytes_min);

// What a block costs before the slowest lane, and on it.
struct PipelineLines {
  CostPiece before;
  CostPiece slowest;

  // The largest block that is through with the first of them while one of `bytes` is on the
  // slowest: what follows it leaves no gap there.
  double BytesBehind(double bytes) const;
};

// Cuts blocks into pieces that grow: none is larger than what leaves no gap behind the one before,
// and the first of those that wait for the same release is at most `bytes_first`. So the slowest
// lane waits for one such piece, however large blocks are, and the number of pieces grows with the
// logarithm of their size only. With `shrinks` the pieces of a block get smaller again towards its
// end, for what follows the slowest lane.
Draft Graded(const Workload& work, const Draft& draft, const PipelineLines& lines,
             double bytes_first, bool shrinks);

}  // namespace headrace::plan
