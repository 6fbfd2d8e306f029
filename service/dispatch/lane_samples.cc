#include "service/dispatch/lane_samples.h"

#include <algorithm>
#include <cmath>

namespace headrace::service {
namespace {

constexpr int kRounds = 12;
// Within this share of the line a sample has its whole weight.
constexpr double kClose = 0.05;
// The prior weighs as much as this share of the samples, at a size that shows the startup.
constexpr double kPriorShare = 0.05;
constexpr double kPriorBytes = 16384;
constexpr double kSecondsMin = 1e-6;

// Blocks are late for many reasons and early for none: those above the line count less.
double Trust(double seconds, double line_s) {
  const double miss = (seconds - line_s) / line_s;
  if (std::abs(miss) <= kClose) return 1;
  return miss > 0 ? kClose * kClose / (miss * miss) : kClose / -miss;
}

}  // namespace

void LaneSamples::Add(double bytes, double seconds) {
  if (!(bytes > 0) || !(seconds > 0)) return;
  if (samples_.size() < kSamplesMax) {
    samples_.push_back({bytes, seconds});
    return;
  }
  samples_[next_] = {bytes, seconds};
  next_ = (next_ + 1) % kSamplesMax;
}

transport::CostLine LaneSamples::Fit(const transport::CostLine& prior) const {
  if (samples_.size() < kSamplesMin) return prior;
  // The first line is that of the large ones. Then what lasts long counts for how long it lasts,
  // and its spread grows with it: weights of 1 / T keep the sum of all times.
  transport::CostLine line{0, 0};
  for (int round = 0; round < kRounds; ++round) {
    transport::CostSums sums;
    for (const transport::CostSample& sample : samples_) {
      const double line_s = std::max(line.Seconds(sample.bytes), kSecondsMin);
      sums.Add(sample, round == 0 ? 1 : Trust(sample.seconds, line_s) / line_s);
    }
    if (round > 0 && prior.s_per_byte > 0) {
      const double prior_s = std::max(prior.Seconds(kPriorBytes), kSecondsMin);
      sums.Add({kPriorBytes, prior_s},
               kPriorShare * static_cast<double>(samples_.size()) / prior_s);
    }
    line = transport::FitCostLine(sums);
  }
  return line;
}

}  // namespace headrace::service
