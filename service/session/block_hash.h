// The hash of a block's results on the ranks of one node, for the comparison with the job's other
// nodes, if `verify` is set.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::service {

// Which block it was, by numbers that are the same on every node of the job.
struct BlockName {
  bool planned = false;      // a block of the job's plan, and not of an operation
  std::uint64_t number = 0;  // of the iteration, or of the operation; both count from 1
  std::uint32_t block = 0;   // place in the plan, or within the operation; from 0

  auto operator<=>(const BlockName&) const = default;
};

struct BlockHash {
  BlockName name;
  std::uint64_t hash = 0;  // transport::Completion::digest
};

// "block 3 of iteration 400", as `headracectl plan` counts them, or "block 1 of operation 17".
std::string DescribeBlock(const BlockName& name);

}  // namespace headrace::service
