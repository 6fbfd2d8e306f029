// A cost line through measured times. Pure.
//
// There are three fits, because three kinds of samples deceive in three ways:
//
//   LineOfLargest   a measurement of an idle lane, one time for each size: small messages are
//                   quicker than blocks can be
//   FitCostLine     all that goes on, of which sums are kept and forgotten: cheap, and it follows
//                   the last transfers
//   FitBlocks       the blocks of a plan, each with its time: many of them have waited for another
//                   node, which least squares would take for cost
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

// The line of a measurement, whose samples have growing sizes: the rate is that between the two
// largest, the startup what the smallest takes beside its bytes. Small sizes must not make the
// rate: what lets them pass quickly (a burst that a rate limit allows, an empty socket buffer) does
// not carry a block. Nor must that rate be theirs, or it would explain all of their time and leave
// no startup.
CostLine LineOfLargest(std::span<const CostSample> samples);

// The line with the least squares from weighted sums, as a fit that goes on and on keeps them.
// Neither startup nor rate is negative; without any sample, the line is {0, kSecondsPerByteMin}.
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

struct WeightedSample {
  CostSample cost;
  double weight = 0;
};

// The line of at least one block, in which what does not fit counts little: blocks that waited for
// another node are above every line. `prior` is what is believed without them; it says where sizes
// are too alike to tell the startup from the rate. Without a rate it says nothing.
CostLine FitBlocks(std::span<const WeightedSample> samples, const CostLine& prior);

}  // namespace headrace::transport
