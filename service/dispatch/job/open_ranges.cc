#include "service/dispatch/job/open_ranges.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {

std::uint64_t OpenRange::Shared(const OpenRange& other) const {
  return Overlaps(other) ? std::min(end, other.end) - std::max(begin, other.begin) : 0;
}

const OpenRange* OpenRanges::FindConflict(const OpenRange& range) const {
  // Backwards from the last that begins before the end of `range`.
  auto at = std::ranges::lower_bound(ranges_, range.end, {}, &OpenRange::begin);
  while (at != ranges_.begin()) {
    --at;
    if (at->Conflicts(range)) return &*at;
    // Whatever begins before a range that is written ends before it.
    if (at->written) return nullptr;
  }
  return nullptr;
}

void OpenRanges::Open(const OpenRange& range) {
  HR_CHECK(range.begin < range.end, range.begin, range.end);
  ranges_.insert(std::ranges::upper_bound(ranges_, range.begin, {}, &OpenRange::begin), range);
}

void OpenRanges::Close(const OpenRange& range) {
  auto at = std::ranges::lower_bound(ranges_, range.begin, {}, &OpenRange::begin);
  while (at != ranges_.end() && at->begin == range.begin && at->sequence != range.sequence) ++at;
  HR_CHECK(at != ranges_.end() && at->sequence == range.sequence, range.begin, range.sequence);
  ranges_.erase(at);
}

}  // namespace headrace::service
