// The policies that send gradients in the order they become ready, whole, and let the forward pass
// wait for the last one.

#include <algorithm>
#include <vector>

#include "service/plan/policies.h"

namespace headrace::plan {

const PolicyTraits kBspTraits = {
    .barrier = true, .sizes_by_cost = false, .halves = false, .from_others = false};

// All gradients in one block after the backward pass.
Draft Bsp(const Workload& work, const Route& /*route*/, const DraftOptions& /*options*/) {
  Draft draft;
  draft.barrier = true;
  draft.Open();
  for (std::uint32_t l = 0; l < work.size(); ++l) draft.Append(l, 0, work.bytes[l]);
  return draft;
}

const PolicyTraits kWfbpTraits = {
    .barrier = true, .sizes_by_cost = false, .halves = false, .from_others = false};

// Wait-free backpropagation: each tensor a block, as ready. Zhang et al., "Poseidon", USENIX ATC
// 2017.
Draft Wfbp(const Workload& work, const Route& /*route*/, const DraftOptions& /*options*/) {
  Draft draft;
  draft.barrier = true;
  for (auto l = static_cast<std::uint32_t>(work.size()); l-- > 0;) {
    draft.Open();
    draft.Append(l, 0, work.bytes[l]);
  }
  return draft;
}

const PolicyTraits kMgWfbpTraits = {
    .barrier = true, .sizes_by_cost = true, .halves = false, .from_others = false};

// Merged-gradient wait-free backpropagation. Shi, Chu, Li, "MG-WFBP", IEEE INFOCOM 2019: going from
// tensor L-1 to 1, l is merged into l-1 when its communication would start after r_{l-1} or when
// waiting for l-1 costs less than a startup: r_{l-1} - start_l < a. On a route of several stages
// the line of its slowest lane decides.
Draft MgWfbp(const Workload& work, const Route& route, const DraftOptions& /*options*/) {
  const PiecewiseCost line = SteadyLine(route);
  Draft draft;
  draft.barrier = true;
  double free_s = 0;
  draft.Open();
  for (auto l = static_cast<std::uint32_t>(work.size()); l-- > 0;) {
    draft.Append(l, 0, work.bytes[l]);
    if (l == 0) break;
    const double start_s = std::max(free_s, work.release_s[l]);
    if (work.release_s[l - 1] - start_s < line.Seconds(0)) continue;  // l goes with l-1
    free_s = start_s + line.Seconds(draft.blocks.back().bytes);
    draft.Open();
  }
  return draft;
}

}  // namespace headrace::plan
