#include "ipc/base/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace headrace {
namespace {

// Letters left out, added, replaced, or two neighbours exchanged: one edit each.
std::size_t EditDistance(std::string_view from, std::string_view to) {
  using Row = std::vector<std::size_t>;
  Row row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  Row before;       // the row above
  Row before_that;  // and the one above that
  for (std::size_t i = 1; i <= from.size(); ++i) {
    before_that = std::exchange(before, row);
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replaced = before[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, replaced});
      const bool exchanged = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (exchanged) row[j] = std::min(row[j], before_that[j - 2] + 1);
    }
  }
  return row.back();
}

constexpr std::size_t kPrefixMin = 3;

}  // namespace

std::string NearestName(std::string_view name, std::span<const std::string> candidates) {
  std::string nearest;
  // More edits than one in three letters make another word: "foo" is no slip for "top".
  const std::size_t edits_max = std::max<std::size_t>(1, name.size() / 3);
  std::size_t least = edits_max + 1;
  for (const std::string& candidate : candidates) {
    const bool begins_it = name.size() >= kPrefixMin && candidate.starts_with(name);
    const std::size_t distance = begins_it ? edits_max : EditDistance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace headrace
