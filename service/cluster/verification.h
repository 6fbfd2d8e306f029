// Compares the results of the nodes of a job, block by block, if the option `verify` is set. Runs
// on the thread of its owner. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "service/cluster/agreement.h"
#include "service/session/block_hash.h"

namespace headrace::service {

class Verification {
 public:
  // Limit of blocks that some nodes have reported and others have not. A slow node is behind by the
  // blocks that a job has open, not by more. Beyond the limit the oldest block is dropped.
  static constexpr std::size_t kOpenMax = 2048;

  // For a job of those nodes. Servers have no results.
  explicit Verification(const Agreement& agreement);

  // The node at `place` reports the result of its ranks. When all nodes have reported a block,
  // returns how the results differ, if they do. A second report of a node for a block is ignored.
  std::optional<std::string> Compare(std::size_t place, const BlockHash& hashed);

 private:
  struct Open {
    std::vector<std::optional<std::uint64_t>> hashes;  // by index of node
    std::size_t reported = 0;
  };

  std::string DescribeDifference(const BlockName& block, const Open& open) const;

  std::vector<std::string> names_;  // names of the nodes with ranks
  std::map<BlockName, Open> open_;
};

}  // namespace headrace::service
