#include "tests/sim/agreements.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::sim {
namespace {

bool IsSame(const service::JobNodes& one, const service::JobNodes& other) {
  const auto same_node = [](const service::JobNode& a, const service::JobNode& b) {
    return a.name == b.name && a.ranks == b.ranks;
  };
  return std::ranges::equal(one.nodes, other.nodes, same_node) && one.epoch == other.epoch &&
         one.servers_count == other.servers_count && one.plan_version == other.plan_version &&
         one.block_bytes == other.block_bytes && one.costs == other.costs;
}

}  // namespace

void Agreements::Formed(std::uint64_t key, const service::JobNodes& nodes) {
  const auto [found, is_new] = formed_.try_emplace(key, nodes);
  if (wrong_ || is_new) return;
  const std::string& self = nodes.nodes[nodes.self].name;
  if (!IsSame(found->second, nodes)) {
    wrong_ = fmt::format("node {} began a job with other nodes than its others", self);
  } else if (found->second.self == nodes.self) {
    wrong_ = fmt::format("two nodes of a job are both number {} of it ({})", nodes.self, self);
  }
}

void Agreements::Started(std::uint64_t key, std::uint64_t hash, bool differs) {
  if (wrong_ || differs) return;
  const auto [found, is_new] = hashes_.try_emplace(key, hash);
  if (!is_new && found->second != hash) {
    wrong_ = fmt::format("plans {:016x} and {:016x} of one job", found->second, hash);
  }
}

}  // namespace headrace::sim
