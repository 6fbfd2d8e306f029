// Which entry of a full list is dropped, so that no user displaces the entries of another. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "ipc/base/check.h"

namespace headrace::service {

// The first entry, which is the oldest, of the user that has the most of them. `entries` is not
// empty; `uid_of` returns the user of an entry.
template <typename Entries, typename UidOf>
auto OldestOfGreediest(Entries& entries, const UidOf& uid_of) {
  std::map<std::uint32_t, std::size_t> counts;
  for (const auto& each : entries) ++counts[std::invoke(uid_of, each)];
  HR_CHECK(!counts.empty(), entries.size());
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return std::ranges::find(entries, most->first, uid_of);
}

}  // namespace headrace::service
