// The yardstick: a plain loop that adds the members' floats and writes the sum to each, as an
// optimising compiler vectorises it. It does no more than that: nothing about NaN, no types, no
// numbers of members but these.
#pragma once

#include <cstddef>

namespace headrace::transport {

// Sums elements [begin, end) of 2, 4 or 8 members in place.
void IdealSum(float* const* members, std::size_t members_count, std::size_t begin, std::size_t end);

}  // namespace headrace::transport
