// What the nodes of each job were seen to agree on: the first that they differ in is remembered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ipc/board_layout.h"
#include "service/dispatch/messages.h"
#include "service/session/nodes.h"

namespace headrace::sim {

class Agreements {
 public:
  // A node's dispatch was told that the job with that key may begin.
  void Formed(std::uint64_t key, const service::JobNodes& nodes);
  // A node has said which plan it takes up; `differs`: one that is made to use another.
  void Started(std::uint64_t key, std::uint64_t hash, bool differs);

  // A node's dispatch was offered a plan, and told from which iteration on it is in force.
  void Offered(std::uint64_t key, const service::PlanOffer& offer);
  void Switched(std::uint64_t key, const service::PlanSwitch& change);
  // What a node shows of the plan that it moves gradients by.
  void Shown(std::uint64_t key, const std::string& node, const ipc::PlanRow& row);

  std::size_t switches_count() const { return switches_.size(); }
  const std::optional<std::string>& wrong() const { return wrong_; }
  std::size_t formed_count() const { return formed_.size(); }

 private:
  std::map<std::uint64_t, service::JobNodes> formed_;
  std::map<std::uint64_t, std::uint64_t> hashes_;
  // By job and version.
  using Version = std::pair<std::uint64_t, std::uint32_t>;
  std::map<Version, std::uint64_t> plans_;     // their hashes
  std::map<Version, std::uint64_t> switches_;  // their first iterations
  std::optional<std::string> wrong_;
};

}  // namespace headrace::sim
