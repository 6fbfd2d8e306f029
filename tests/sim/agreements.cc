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

void Agreements::Offered(std::uint64_t key, const service::PlanOffer& offer) {
  if (wrong_) return;
  const auto [found, is_new] = plans_.try_emplace({key, offer.plan->version}, offer.hash);
  if (!is_new && found->second != offer.hash) {
    wrong_ = fmt::format("plan {} of one job has the hashes {:016x} and {:016x}",
                         offer.plan->version, found->second, offer.hash);
  }
}

void Agreements::Switched(std::uint64_t key, const service::PlanSwitch& change) {
  if (wrong_) return;
  if (!plans_.contains({key, change.version})) {
    wrong_ = fmt::format("nodes switch to plan {}, which no node was offered", change.version);
    return;
  }
  const auto [found, is_new] = switches_.try_emplace({key, change.version}, change.from_iteration);
  if (!is_new && found->second != change.from_iteration) {
    wrong_ = fmt::format("nodes switch to plan {} at iterations {} and {}", change.version,
                         found->second, change.from_iteration);
  }
}

void Agreements::Shown(std::uint64_t key, const std::string& node, const ipc::PlanRow& row) {
  if (wrong_ || row.version == 0) return;
  const auto plan = plans_.find({key, row.version});
  const auto from = switches_.find({key, row.version});
  if (plan == plans_.end() || plan->second != row.hash) {
    wrong_ = fmt::format("node {} moves gradients by a plan {} of its own", node, row.version);
  } else if (from == switches_.end() || from->second != row.from_iteration) {
    wrong_ = fmt::format("node {} moves gradients by plan {} from iteration {} on, not as agreed",
                         node, row.version, row.from_iteration);
  } else if (row.next_iteration != 0 && row.iteration >= row.next_iteration) {
    wrong_ = fmt::format(
        "node {} has ended iteration {} by plan {}, although plan {} was to move "
        "iteration {}",
        node, row.iteration, row.version, row.next_version, row.next_iteration);
  }
}

}  // namespace headrace::sim
