#include "service/cluster/names.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::service {
namespace {

constexpr std::size_t kNamedMax = 8;

template <typename Each>
std::string Listed(std::span<const Each> all) {
  std::string text = fmt::format("{}", fmt::join(all.first(std::min(all.size(), kNamedMax)), ", "));
  if (all.size() > kNamedMax) text += fmt::format(" and {} more", all.size() - kNamedMax);
  return text;
}

}  // namespace

std::string MissingRanks(std::span<const std::uint32_t> ranks) {
  return fmt::format("{} {} {} missing", ranks.size() == 1 ? "rank" : "ranks", Listed(ranks),
                     ranks.size() == 1 ? "is" : "are");
}

std::string NodeList(const std::vector<std::string>& names) {
  return fmt::format("{} {}", names.size() == 1 ? "node" : "nodes",
                     Listed(std::span<const std::string>(names)));
}

}  // namespace headrace::service
