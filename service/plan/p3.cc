// P3: slices of one size, the tensor nearest to the input first, preemptive at their borders.
// Jayarajan et al., "Priority-Based Parameter Propagation for Distributed DNN Training", MLSys
// 2019. It sends a slice as soon as the one before has left; nothing is tuned.

#include <algorithm>

#include "service/plan/bytescheduler.h"
#include "service/plan/policies.h"

namespace headrace::plan {
namespace {

constexpr std::uint64_t kSliceElements = 50'000;  // the paper's
constexpr std::uint64_t kSlicesMax = 4096;  // of an iteration, about; a larger model's are larger

std::uint64_t SliceBytes(const Workload& work) {
  const std::uint64_t least = work.total_bytes() / work.element_bytes / kSlicesMax + 1;
  return std::max(kSliceElements, least) * work.element_bytes;
}

}  // namespace

const PolicyTraits kP3Traits = {
    .barrier = false, .sizes_by_cost = false, .halves = false, .from_others = false};

Draft P3(const Workload& work, const Route& route, const DraftOptions& options) {
  const auto stages = static_cast<std::uint32_t>(route.stages.size());
  const std::uint64_t bytes =
      options.settings.unit_bytes > 0 ? options.settings.unit_bytes : SliceBytes(work);
  return ByteScheduler(work, route, ByteSchedulerTuning{bytes, stages});
}

}  // namespace headrace::plan
