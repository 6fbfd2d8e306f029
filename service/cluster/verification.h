// Compares what the nodes of a job have got, block by block, where `verify` asks for it. Pure.
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
  // Blocks of which some nodes have reported and others have not. A node has a job's blocks under
  // way when it is behind, and no more of them than that; what goes beyond is forgotten, oldest
  // first.
  static constexpr std::size_t kOpenMax = 2048;

  // Of a job of those nodes; servers hold no results.
  explicit Verification(const Agreement& agreement);

  // The node at `place` reports what its ranks have got. Once all have reported a block: how they
  // differ, if they do. A node counts once for each block.
  std::optional<std::string> Compare(std::size_t place, const BlockHash& hashed);

 private:
  struct Open {
    std::vector<std::optional<std::uint64_t>> hashes;  // by place
    std::size_t reported = 0;
  };

  std::string DescribeDifference(const BlockName& block, const Open& open) const;

  std::vector<std::string> names_;  // of the nodes with ranks
  std::map<BlockName, Open> open_;
};

}  // namespace headrace::service
