#include "service/session/block_hash.h"

#include <fmt/format.h>

namespace headrace::service {

std::string DescribeBlock(const BlockName& name) {
  return fmt::format("block {} of {} {}", name.block + 1, name.planned ? "iteration" : "operation",
                     name.number);
}

}  // namespace headrace::service
