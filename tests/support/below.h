// Random whole numbers of tests, from the planner's generator.
#pragma once

#include <cstdint>

#include "service/plan/random.h"

namespace headrace::plan {

// In [0, count).
inline std::uint64_t Below(Random& random, std::uint64_t count) { return random.Next() % count; }

}  // namespace headrace::plan
