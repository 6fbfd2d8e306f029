// The open work of all jobs of one uid on this node.
#pragma once

#include <cstdint>

namespace headrace::service {

struct UidUse {
  std::uint32_t uid = 0;
  std::uint32_t jobs = 0;
  std::uint64_t posts = 0;  // operations and gradients that were posted and have not ended
};

}  // namespace headrace::service
