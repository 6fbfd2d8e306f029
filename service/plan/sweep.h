// The lazy sweep: the least iteration time of any plan on one serial lane with cost a + b*m, and
// where such a plan cuts.
//
// Why it is enough to look for cuts and groups:
//   - The newest gradient always has the longest tail, so what is ready is a stack. In phase 1
//     (before the backward pass ends at T_B) no deadline falls, so block borders may stand at
//     release times: a set of *cuts*, tensors k whose release r_k begins a block that is popped
//     from the top of the stack and ends at the next cut or at T_B.
//   - Phase 2 starts at T_B with what is left, input first, in *groups* of neighbours.
//   - With cut k, n blocks from r_k to T_B, and group i that starts at tensor j, tensor l is in
//     time for the iteration time K if and only if
//         b*(M_0 + ... + M_l) <= K - r_k - q_j - N*a,   N = n + i.
//     The right side does not depend on l and the left side grows with it, so the first tensor that
//     is late is found by binary search.
//   - It never helps to change anything before the first late tensor l: a later cut has the smaller
//     release time, a later group the smaller tail. There, either cut (k := l) or start a group
//     (j := l); N grows by one. What matters of a state is N, k and j, and of the states with equal
//     N only those count that no other beats in both k and j.
#pragma once

#include <cstdint>
#include <vector>

#include "service/plan/workload.h"

namespace headrace::plan {

// A stretch of tensors that are all in time under one cut and one group.
struct SweepStep {
  std::uint32_t cut = 0;       // k
  std::uint32_t group = 0;     // j
  std::uint32_t startups = 1;  // N
  std::uint32_t last = 0;      // the last tensor of the stretch
};

struct Sweep {
  double iteration_s = 0;  // of the steps: the largest r_k + q_j + N*a + b*(M_0 + ... + M_last)
  std::vector<SweepStep> steps;  // from tensor 0 to the last one
};

// `bound_s`: no plan is faster (LowerBound); the search starts there and mostly ends near it.
Sweep SweepCuts(const Workload& work, double startup_s, double s_per_byte, double bound_s);

}  // namespace headrace::plan
