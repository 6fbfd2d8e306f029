// The results that a sum over several nodes may have, bit for bit: each node sums its own ranks in
// rank order, then the nodes' sums are added in an order that the algorithm fixes. Computed by the
// reference alone, which shares no code with what ran.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/sim/program.h"
#include "transport/network.h"

namespace headrace::sim {

struct NodeSums {
  std::vector<std::vector<std::uint32_t>> ranks;  // by node, in the order of their lowest ranks
  transport::Algorithm algorithm = transport::Algorithm::kAuto;
  bool served = false;  // servers sum
};

// One result for each order that is possible; all elements of the operation in each.
std::vector<std::vector<std::byte>> SumsOf(const Planned& planned, const NodeSums& nodes,
                                           const std::vector<std::vector<std::byte>>& inputs);

// Where the rank's memory holds the result: first and last byte.
std::pair<std::ptrdiff_t, std::ptrdiff_t> SummedBytes(const Planned& planned,
                                                      std::uint32_t world_size, std::uint32_t rank);

}  // namespace headrace::sim
