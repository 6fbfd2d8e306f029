// What one transfer does to a range of its elements, over mapped memory, without staging copies.
#pragma once

#include <cstdint>

#include "transport/transport.h"

namespace headrace::transport {

// Applies the transfer to its elements [begin, end). Ranges of one transfer may be done in any
// order and by several threads at a time, as long as each element is done once. A range may reach
// over any number of runs: what a piece costs is its bytes, not the borders in it.
void MoveRange(const Transfer& transfer, std::uint64_t begin, std::uint64_t end);

}  // namespace headrace::transport
