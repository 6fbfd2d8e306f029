#include "service/cluster/verification.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

Verification::Verification(const Agreement& agreement) {
  HR_CHECK(agreement.servers_count < agreement.nodes.size(), agreement.servers_count);
  const std::size_t count = agreement.nodes.size() - agreement.servers_count;
  for (std::size_t place = 0; place < count; ++place) {
    names_.push_back(agreement.nodes[place].name);
  }
}

std::optional<std::string> Verification::Compare(std::size_t place, const BlockHash& hashed) {
  HR_CHECK(place < names_.size(), place, names_.size());
  const auto [found, added] = open_.try_emplace(hashed.name);
  Open& open = found->second;
  if (added) open.hashes.resize(names_.size());
  std::optional<std::uint64_t>& hash = open.hashes[place];
  if (hash) return {};
  hash = hashed.hash;
  HR_CHECK(open.reported < names_.size(), open.reported, names_.size());
  if (++open.reported < names_.size()) {
    HR_CHECK(open_.size() <= kOpenMax + 1, open_.size());
    // Numbers grow: the lowest is the oldest.
    if (open_.size() > kOpenMax) open_.erase(open_.begin());
    return {};
  }
  const bool differ =
      std::ranges::any_of(open.hashes, [&](const auto& each) { return *each != hashed.hash; });
  std::optional<std::string> difference;
  if (differ) difference = DescribeDifference(hashed.name, open);
  open_.erase(found);
  return difference;
}

std::string Verification::DescribeDifference(const BlockName& block, const Open& open) const {
  std::map<std::uint64_t, std::vector<std::string>> nodes;
  for (std::size_t place = 0; place < names_.size(); ++place) {
    nodes[*open.hashes[place]].push_back(names_[place]);
  }
  // Who is alone is more likely wrong, and named first.
  std::vector<std::pair<std::uint64_t, std::vector<std::string>>> sorted(nodes.begin(),
                                                                         nodes.end());
  std::ranges::stable_sort(sorted, {}, [](const auto& group) { return group.second.size(); });
  std::vector<std::string> groups;
  for (const auto& [hash, names] : sorted) {
    groups.push_back(fmt::format("{:016x} on {}", hash, fmt::join(names, ", ")));
  }
  return fmt::format(
      "verify: {} has not the same result on all nodes: {}. Bytes were changed on the way between "
      "these nodes or in their memory, or a rank wrote to a gradient that it had posted",
      DescribeBlock(block), fmt::join(groups, "; "));
}

}  // namespace headrace::service
