// What PyTorch's DistributedDataParallel sends: gradients in the order they become ready, grouped
// into DDP's buckets, which close with the tensor that reaches their size. Li et al., "PyTorch
// Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020; the sizes are the
// defaults of its Reducer (a small first one, so that communication begins early).

#include <algorithm>

#include "service/plan/policies.h"

namespace headrace::plan {
namespace {

constexpr std::uint64_t kFirstBytes = 1 << 20;
constexpr std::uint64_t kGroupBytes = 25 << 20;

}  // namespace

const PolicyTraits kDdpTraits = {
    .barrier = true, .sizes_by_cost = false, .halves = false, .from_others = false};

Draft Ddp(const Workload& work, const Route& /*route*/, const DraftOptions& options) {
  const std::uint64_t size =
      options.settings.unit_bytes > 0 ? options.settings.unit_bytes : kGroupBytes;
  std::uint64_t limit = std::min(kFirstBytes, size);
  Draft draft;
  draft.barrier = true;
  draft.Open();
  for (auto l = static_cast<std::uint32_t>(work.size()); l-- > 0;) {
    draft.Append(l, 0, work.bytes[l]);
    if (draft.blocks.back().bytes < limit) continue;
    limit = size;
    draft.Open();
  }
  draft.Close();
  return draft;
}

}  // namespace headrace::plan
