// ByteScheduler over a transport that fuses what is in flight, as Horovod does: the partitions
// that hold credit at the same time travel as one block and share its startup. Peng et al., ACM
// SOSP 2019, section 5, where credit is counted in bytes: a partition starts while any is left.

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "ipc/base/check.h"
#include "service/plan/bytescheduler.h"
#include "service/plan/policies.h"
#include "service/plan/ready_set.h"

namespace headrace::plan {
namespace {

constexpr std::array<std::uint32_t, 5> kCreditsTried = {1, 2, 4, 8, 16};
constexpr double kStep = 1.5;  // between partition sizes

struct Window {
  std::uint64_t partition_bytes = 0;
  std::uint64_t credit_bytes = 0;
};

// One iteration: whenever the first lane is free, the most urgent partitions up to the credit go.
Draft Dispatch(const Workload& work, const Route& route, const Window& window) {
  HR_CHECK(window.partition_bytes > 0 && window.credit_bytes > 0, window.partition_bytes,
           window.credit_bytes);
  const auto none = static_cast<std::uint32_t>(work.size());
  const Stage& first = route.stages.front();
  Draft draft;
  ReadySet ready(work.size());
  std::vector<std::uint64_t> sent(work.size(), 0);
  std::uint32_t unreleased = none;
  double now = 0;
  while (true) {
    while (unreleased > 0 && work.release_s[unreleased - 1] <= now) ready.Insert(--unreleased);
    if (ready.First(none) == none) {
      if (unreleased == 0) return draft;
      now = work.release_s[unreleased - 1];
      continue;
    }
    draft.Open();
    for (std::uint32_t l = ready.First(none);
         l != none && draft.blocks.back().bytes < window.credit_bytes; l = ready.First(none)) {
      const std::uint64_t bytes = std::min(window.partition_bytes, work.bytes[l] - sent[l]);
      draft.Append(l, sent[l], bytes);
      sent[l] += bytes;
      if (sent[l] == work.bytes[l]) ready.Erase(l);
    }
    now += StageSeconds(first, draft.blocks.back().bytes, work.element_bytes);
  }
}

std::vector<std::uint64_t> PartitionSizes(const Workload& work, std::uint64_t given) {
  if (given > 0) return {given};
  const PartitionBounds bounds = BoundsOf(work);
  const auto smallest = static_cast<double>(bounds.smallest);
  std::vector<std::uint64_t> sizes;
  // From large to small: of sizes that are equally good the largest makes the fewest pieces.
  for (auto size = static_cast<double>(bounds.largest); size * kStep > smallest; size /= kStep) {
    sizes.push_back(WholeElements(std::max(size, smallest), work.element_bytes));
  }
  return sizes;
}

}  // namespace

const PolicyTraits kByteSchedulerFusedTraits = {
    .barrier = false, .sizes_by_cost = true, .halves = false, .from_others = false};

Draft ByteSchedulerFused(const Workload& work, const Route& route, const DraftOptions& options) {
  FastestDraft fastest(work, route);
  const std::uint32_t given = options.settings.credits;
  const std::span<const std::uint32_t> credits =
      given > 0 ? std::span(&given, 1) : std::span(kCreditsTried);
  for (const std::uint64_t size : PartitionSizes(work, options.settings.unit_bytes)) {
    for (const std::uint64_t count : credits) {
      fastest.Offer(Dispatch(work, route, {size, count * size}));
    }
  }
  return std::move(fastest).Release();
}

}  // namespace headrace::plan
