#include "transport/probe/line_fit.h"

#include <algorithm>

namespace headrace::transport {

void CostSums::Add(const CostSample& sample, double sample_weight) {
  weight += sample_weight;
  bytes += sample_weight * sample.bytes;
  seconds += sample_weight * sample.seconds;
  bytes_bytes += sample_weight * sample.bytes * sample.bytes;
  bytes_seconds += sample_weight * sample.bytes * sample.seconds;
}

void CostSums::Forget(double keep) {
  weight *= keep;
  bytes *= keep;
  seconds *= keep;
  bytes_bytes *= keep;
  bytes_seconds *= keep;
}

CostLine LineOfLargest(std::span<const CostSample> samples) {
  if (samples.empty()) return {0, kSecondsPerByteMin};
  const CostSample& smallest = samples.front();
  const CostSample& largest = samples.back();
  const double whole = largest.seconds / largest.bytes;
  double rate = whole;
  if (samples.size() > 1) {
    const CostSample& second = samples[samples.size() - 2];
    rate = (largest.seconds - second.seconds) / (largest.bytes - second.bytes);
  }
  // One of the two was disturbed when their difference tells another story than the larger alone.
  rate = std::max({std::clamp(rate, 0.5 * whole, 1.5 * whole), kSecondsPerByteMin});
  return {std::max(smallest.seconds - rate * smallest.bytes, 0.0), rate};
}

// Weighted least squares; where it leaves the quadrant, the best line on its border.
CostLine FitCostLine(const CostSums& sums) {
  if (sums.weight <= 0) return {0, kSecondsPerByteMin};
  const double spread = sums.weight * sums.bytes_bytes - sums.bytes * sums.bytes;
  // With one size only, nothing tells startup from rate.
  const bool one_size = spread <= 1e-9 * sums.weight * sums.bytes_bytes;
  double rate =
      one_size ? 0 : (sums.weight * sums.bytes_seconds - sums.bytes * sums.seconds) / spread;
  double startup = (sums.seconds - rate * sums.bytes) / sums.weight;
  if (startup < 0 || (one_size && sums.bytes_bytes > 0)) {
    startup = 0;
    rate = sums.bytes_seconds / sums.bytes_bytes;
  }
  if (rate < kSecondsPerByteMin) {
    rate = kSecondsPerByteMin;
    startup = sums.seconds / sums.weight;
  }
  return {std::max(startup, 0.0), rate};
}

}  // namespace headrace::transport
