#include "service/plan/fifo.h"

#include <algorithm>
#include <vector>

namespace headrace::plan {

Draft Bsp(const Workload& work) {
  Draft draft;
  draft.barrier = true;
  draft.Open();
  for (std::uint32_t l = 0; l < work.size(); ++l) draft.Append(l, 0, work.bytes[l]);
  return draft;
}

Draft Wfbp(const Workload& work) {
  Draft draft;
  draft.barrier = true;
  for (auto l = static_cast<std::uint32_t>(work.size()); l-- > 0;) {
    draft.Open();
    draft.Append(l, 0, work.bytes[l]);
  }
  return draft;
}

Draft MgWfbp(const Workload& work, const Route& route) {
  const CostLine line = SteadyLine(route);
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
