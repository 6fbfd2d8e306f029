// A time longer than any time of a plan.
#pragma once

#include <limits>

namespace headrace::plan {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace headrace::plan
