// A cost line through measured times. Pure.
#pragma once

#include <span>

#include "transport/network.h"

namespace headrace::transport {

struct CostSample {
  double bytes = 0;  // that a node sent
  double seconds = 0;
};

// No wire is quicker: what a line's s_per_byte is at least, so that it can be divided by.
inline constexpr double kSecondsPerByteMin = 1e-13;

// The line with the least squares of relative errors: sizes span decades, and a microsecond matters
// at the small end as much as a millisecond at the other. Neither startup nor rate is negative.
// Samples must have seconds above zero; without any, the line is {0, kSecondsPerByteMin}.
CostLine FitCostLine(std::span<const CostSample> samples);

// The same from weighted sums, as a fit that goes on and on keeps them.
struct CostSums {
  double weight = 0;
  double bytes = 0;
  double seconds = 0;
  double bytes_bytes = 0;
  double bytes_seconds = 0;

  void Add(const CostSample& sample, double sample_weight);
  void Forget(double keep);
};
CostLine FitCostLine(const CostSums& sums);

}  // namespace headrace::transport
