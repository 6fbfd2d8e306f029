#include "service/dispatch/job/lane_samples.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

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
// What a sample of an earlier plan weighs, once there are enough of the last one.
constexpr double kEarlierPlanWeight = 0.25;

struct Weighted {
  double value = 0;
  double weight = 0;
};

// The value up to which, in growing order, there is this share of all weight.
double Quantile(std::vector<Weighted>& values, double share) {
  HR_CHECK(!values.empty());
  std::sort(values.begin(), values.end(),
            [](const Weighted& one, const Weighted& other) { return one.value < other.value; });
  double left = 0;
  for (const Weighted& each : values) left += share * each.weight;
  for (const Weighted& each : values) {
    left -= each.weight;
    if (left <= 0) return each.value;
  }
  return values.back().value;
}

// The weight of a startup, which is what a block's time leaves when its bytes took `bytes_s`.
double WeightOf(double bytes_s) {
  const double share_s = kNoiseShare * bytes_s;
  return 1 / (kNoiseSeconds * kNoiseSeconds + share_s * share_s);
}

}  // namespace

void LaneSamples::Add(std::uint32_t plan, double bytes, double seconds) {
  if (!(bytes > 0) || !(seconds > 0)) return;
  AddBound(bytes, seconds);
  if (plan != last_plan_) of_last_plan_ = 0;
  last_plan_ = plan;
  ++of_last_plan_;
  const PlanSample sample{.cost = {bytes, seconds}, .plan = plan};
  if (samples_.size() < kSamplesMax) {
    samples_.push_back(sample);
    return;
  }
  HR_CHECK(next_ < samples_.size(), next_);
  samples_[next_] = sample;
  next_ = (next_ + 1) % kSamplesMax;
}

std::vector<double> LaneSamples::Weights() const {
  const double earlier = of_last_plan_ < kOfPlanMin ? 1 : kEarlierPlanWeight;
  std::vector<double> weights(samples_.size());
  std::ranges::transform(samples_, weights.begin(), [&](const PlanSample& sample) {
    return sample.plan == last_plan_ ? 1 : earlier;
  });
  return weights;
}

void LaneSamples::AddBound(double bytes, double seconds) {
  if (!(bytes > 0) || !(seconds > 0)) return;
  const bool quicker =
      quickest_.bytes == 0 || seconds * quickest_.bytes < quickest_.seconds * bytes;
  if (quicker) quickest_ = {bytes, seconds};
}

transport::CostLine LaneSamples::Fit(const transport::CostLine& prior) const {
  if (samples_.size() < kSamplesMin) {
    // Measured while others were at it, it may be far too slow.
    const double prior_s = prior.Seconds(quickest_.bytes);
    if (quickest_.bytes == 0 || !(prior_s > quickest_.seconds)) return prior;
    const double share = quickest_.seconds / prior_s;
    return {prior.startup_s * share, prior.s_per_byte * share};
  }
  // By turns: the rate as the startup leaves it, which large blocks tell, and the startup as the
  // rate leaves it, which small ones tell. Least squares over both would not do: however many small
  // ones there are, they are out of line together, and seem to have waited.
  transport::CostLine line = prior;
  const std::vector<double> weights = Weights();
  double all_weight = 0;
  for (const double each : weights) all_weight += each;
  std::vector<Weighted> values(samples_.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const transport::CostSample& cost = samples_[i].cost;
      values[i] = {(cost.seconds - line.startup_s) / cost.bytes, weights[i] * cost.bytes};
    }
    line.s_per_byte = std::max(Quantile(values, kRateShare), transport::kSecondsPerByteMin);
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const transport::CostSample& cost = samples_[i].cost;
      const double bytes_s = line.s_per_byte * cost.bytes;
      values[i] = {cost.seconds - bytes_s, weights[i] * WeightOf(bytes_s)};
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

}  // namespace headrace::service
