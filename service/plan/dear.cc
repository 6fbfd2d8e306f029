// DeAR: each all-reduce is taken apart. Reduce-scatters go as gradients become ready, in groups of
// neighbours that close with the tensor that reaches their size; all-gathers follow when the last
// of them has ended, the group nearest to the input first, and the forward pass waits for its own
// group only. Zhang, Shi, Chu, Wang, Li, "DeAR: Accelerating Distributed Deep Learning with
// Fine-Grained All-Reduce Pipelining", IEEE ICDCS 2023, which tunes the size of the groups; here it
// is searched.
//
// Where blocks cannot travel in halves the groups go as all-reduces, as they are ready.

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/policies.h"

namespace headrace::plan {
namespace {

// From large to small: of sizes that are equally good the largest makes the fewest groups. 25 MiB
// is the paper's before it is tuned.
constexpr std::array<std::uint64_t, 11> kGroupSizes = {std::uint64_t{400} << 20,
                                                       200 << 20,
                                                       100 << 20,
                                                       50 << 20,
                                                       25 << 20,
                                                       12 << 20,
                                                       6 << 20,
                                                       3 << 20,
                                                       1 << 20,
                                                       512 << 10,
                                                       128 << 10};

// The lowest tensor of each group, in the order in which they are ready.
std::vector<std::uint32_t> GroupsOf(const Workload& work, std::uint64_t size) {
  std::vector<std::uint32_t> lowest;
  std::uint64_t bytes = 0;
  for (auto l = static_cast<std::uint32_t>(work.size()); l-- > 0;) {
    bytes += work.bytes[l];
    if (bytes < size && l > 0) continue;
    lowest.push_back(l);
    bytes = 0;
  }
  HR_CHECK(!lowest.empty() && lowest.back() == 0, work.size());
  return lowest;
}

void AppendGroup(const Workload& work, const std::vector<std::uint32_t>& lowest, std::size_t group,
                 Collective kind, Draft& draft) {
  const auto size = static_cast<std::uint32_t>(work.size());
  const std::uint32_t end = group == 0 ? size : lowest[group - 1];
  HR_CHECK(lowest[group] < end, group, lowest[group], end);
  draft.Open(kind);
  for (std::uint32_t l = lowest[group]; l < end; ++l) draft.Append(l, 0, work.bytes[l]);
}

Draft DraftWith(const Workload& work, bool halves, std::uint64_t size) {
  const std::vector<std::uint32_t> lowest = GroupsOf(work, size);
  Draft draft;
  for (std::size_t group = 0; group < lowest.size(); ++group) {
    AppendGroup(work, lowest, group, halves ? Collective::kReduceScatter : Collective::kAllReduce,
                draft);
  }
  for (std::size_t group = lowest.size(); halves && group-- > 0;) {
    AppendGroup(work, lowest, group, Collective::kAllGather, draft);
  }
  return draft;
}

}  // namespace

const PolicyTraits kDearTraits = {
    .barrier = false, .sizes_by_cost = true, .halves = true, .from_others = false};

Draft Dear(const Workload& work, const Route& route, const DraftOptions& options) {
  const std::uint64_t given = options.settings.unit_bytes;
  if (given > 0) return DraftWith(work, route.halves, given);
  FastestDraft fastest(work, route);
  for (const std::uint64_t size : kGroupSizes) fastest.Offer(DraftWith(work, route.halves, size));
  return std::move(fastest).Release();
}

}  // namespace headrace::plan
