// What the nodes of each job were seen to agree on: the first that they differ in is remembered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "service/session/nodes.h"

namespace headrace::sim {

class Agreements {
 public:
  // A node's dispatch was told that the job with that key may begin.
  void Formed(std::uint64_t key, const service::JobNodes& nodes);
  // A node has said which plan it takes up; `differs`: one that is made to use another.
  void Started(std::uint64_t key, std::uint64_t hash, bool differs);

  const std::optional<std::string>& wrong() const { return wrong_; }
  std::size_t formed_count() const { return formed_.size(); }

 private:
  std::map<std::uint64_t, service::JobNodes> formed_;
  std::map<std::uint64_t, std::uint64_t> hashes_;
  std::optional<std::string> wrong_;
};

}  // namespace headrace::sim
