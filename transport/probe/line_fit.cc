#include "transport/probe/line_fit.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

// What follows is of FitBlocks.

constexpr int kRounds = 6;
// The rate is that of a block above the middle, where all bytes are put in order of theirs. A plan
// that expects blocks to be quicker than most are fills the backward pass with more than fits, and
// the first layers wait for it; one that expects them a little slower loses next to nothing.
constexpr double kRateShare = 0.65;
// Startups beyond this share of all count like the last one within it.
constexpr double kStartupShare = 0.75;
// The spread of the startups that blocks show: this time, and this share of what their bytes take.
constexpr double kNoiseSeconds = 50e-6;
constexpr double kNoiseShare = 0.03;
// The prior weighs as much as this share of the samples, at a size that shows the startup.
constexpr double kPriorShare = 0.05;
constexpr double kPriorBytes = 16384;

struct Weighted {
  double value = 0;
  double weight = 0;
};

// The value up to which, in growing order, there is this share of all weight.
double Quantile(std::vector<Weighted>& values, double share) {
  HR_CHECK(!values.empty());
  double left = 0;
  for (const Weighted& each : values) left += share * each.weight;
  // Halved until one is left: dispatch's thread has no time to put them all in order.
  std::span<Weighted> among(values);
  while (among.size() > 1) {
    const std::span<Weighted> lower = among.first(among.size() / 2);
    const auto middle = among.begin() + static_cast<std::ptrdiff_t>(lower.size());
    std::ranges::nth_element(among, middle, {}, &Weighted::value);
    double lower_weight = 0;
    for (const Weighted& each : lower) lower_weight += each.weight;
    if (left <= lower_weight) {
      among = lower;
    } else {
      left -= lower_weight;
      among = among.subspan(lower.size());
    }
  }
  return among.front().value;
}

// The weight of a startup, which is what a block's time leaves when its bytes took `bytes_s`.
double WeightOf(double bytes_s) {
  const double share_s = kNoiseShare * bytes_s;
  return 1 / (kNoiseSeconds * kNoiseSeconds + share_s * share_s);
}

}  // namespace

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
  // What passes in a burst does so at another rate, which is that between the smallest.
  double small_rate = rate;
  if (samples.size() > 1) {
    const double quick_s = samples[1].seconds - smallest.seconds;
    small_rate = std::clamp(quick_s / (samples[1].bytes - smallest.bytes), 0.0, rate);
  }
  return {std::max(smallest.seconds - small_rate * smallest.bytes, 0.0), rate};
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

// By turns: the rate as the startup leaves it, which large blocks tell, and the startup as the rate
// leaves it, which small ones tell. Least squares over both would not do: however many small ones
// there are, they are out of line together, and seem to have waited.
CostLine FitBlocks(std::span<const WeightedSample> samples, const CostLine& prior) {
  CostLine line = prior;
  double all_weight = 0;
  for (const WeightedSample& each : samples) all_weight += each.weight;
  std::vector<Weighted> values(samples.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const CostSample& cost = samples[i].cost;
      values[i] = {(cost.seconds - line.startup_s) / cost.bytes, samples[i].weight * cost.bytes};
    }
    line.s_per_byte = std::max(Quantile(values, kRateShare), kSecondsPerByteMin);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const CostSample& cost = samples[i].cost;
      const double bytes_s = line.s_per_byte * cost.bytes;
      values[i] = {cost.seconds - bytes_s, samples[i].weight * WeightOf(bytes_s)};
    }
    const double most_s = Quantile(values, kStartupShare);
    double startup_s = 0;
    double weight = 0;
    for (const Weighted& each : values) {
      startup_s += std::min(each.value, most_s) * each.weight;
      weight += each.weight;
    }
    if (prior.s_per_byte > 0) {
      const double prior_weight =
          kPriorShare * all_weight * WeightOf(line.s_per_byte * kPriorBytes);
      startup_s += (prior.Seconds(kPriorBytes) - line.s_per_byte * kPriorBytes) * prior_weight;
      weight += prior_weight;
    }
    line.startup_s = std::max(startup_s / weight, 0.0);
  }
  return line;
}

}  // namespace headrace::transport
