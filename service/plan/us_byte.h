// US-Byte: unequal blocks of one tensor each, sized so that they end as the next gradient appears.
// Gao et al., "US-Byte: An Efficient Communication Framework for Scheduling Unequal-Sized Tensor
// Blocks in Distributed Deep Learning", IEEE TPDS 2024.
//
// Tensor l is cut into units of unit_bytes; a block carries some units of one tensor.
// Phase 1, with t the time the lane is free and r the next release:
//   1. Take the ready, unfinished tensor of smallest priority; if there is none, t = r.
//   2. If r - t < a, send one unit. Else, if all the rest does not end by r, send
//      ceil((r - t - a)/(b * unit_bytes)) units. Else send the rest.
//   3. If the block before was of the same tensor and the lane did not idle, that block grows: it
//      has paid its startup, so a counts as 0 in step 2.
// Phase 2: the rest of each tensor in one block, input first.
#pragma once

#include <cstdint>
#include <vector>

#include "service/plan/draft.h"
#include "service/plan/policies.h"
#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

struct UsByteTuning {
  std::uint64_t unit_bytes = 0;           // S_p; the last unit of a tensor may be smaller
  std::vector<std::uint32_t> priorities;  // P, a permutation; smaller is more urgent
};

// One schedule with given tuning, on the route's steady line.
Draft UsByte(const Workload& work, const PiecewiseCost& line, const UsByteTuning& tuning);

// The paper's search of priorities for one unit size: starting input first, each tensor l from the
// back is tried whole before the gradients that appear meanwhile, and kept there if the iteration
// gets shorter. Tensors without a block in phase 1 are passed over, as in the authors' code.
UsByteTuning SearchPriorities(const Workload& work, const PiecewiseCost& line,
                              std::uint64_t unit_bytes);

// Finds the unit size too: a geometric grid with input-first priorities, then the search of
// priorities for the best few sizes.
UsByteTuning TuneUsByte(const Workload& work, const Route& route);

}  // namespace headrace::plan
