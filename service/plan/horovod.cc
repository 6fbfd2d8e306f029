// Horovod's tensor fusion: a thread wakes once a cycle and fuses what has become ready since into
// buffers of a given size, in the order of readiness. Sergeev, Del Balso, "Horovod: fast and easy
// distributed deep learning in TensorFlow", 2018; the defaults are those of release 0.28.
//
// Cycles are counted from the start of the backward pass; a block begins when its last gradient is
// ready and not, as there, at the next cycle, so the prediction is early by up to one cycle.

#include <cmath>

#include "service/plan/policies.h"

namespace headrace::plan {
namespace {

constexpr std::uint64_t kFusionBytes = 128 << 20;
constexpr double kCycle = 1e-3;  // seconds

}  // namespace

const PolicyTraits kHorovodTraits = {
    .barrier = true, .sizes_by_cost = false, .halves = false, .from_others = false};

Draft Horovod(const Workload& work, const Route& /*route*/, const DraftOptions& options) {
  const std::uint64_t size =
      options.settings.unit_bytes > 0 ? options.settings.unit_bytes : kFusionBytes;
  const double cycle_s = options.settings.cycle_s > 0 ? options.settings.cycle_s : kCycle;
  Draft draft;
  draft.barrier = true;
  double cycle = 0;  // in which the last block was begun
  for (auto l = static_cast<std::uint32_t>(work.size()); l-- > 0;) {
    const double ready = std::ceil(work.release_s[l] / cycle_s);
    const bool fits = !draft.blocks.empty() && ready == cycle &&
                      draft.blocks.back().bytes + work.bytes[l] <= size;
    if (!fits) draft.Open();
    cycle = ready;
    draft.Append(l, 0, work.bytes[l]);
  }
  return draft;
}

}  // namespace headrace::plan
