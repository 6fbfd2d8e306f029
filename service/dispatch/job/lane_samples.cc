#include "service/dispatch/job/lane_samples.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// What a sample of an earlier plan weighs, once there are enough of the last one.
constexpr double kEarlierPlanWeight = 0.25;

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

std::vector<transport::WeightedSample> LaneSamples::WeightedSamples() const {
  const double earlier = of_last_plan_ < kOfPlanMin ? 1 : kEarlierPlanWeight;
  std::vector<transport::WeightedSample> weighted(samples_.size());
  std::ranges::transform(samples_, weighted.begin(), [&](const PlanSample& sample) {
    return transport::WeightedSample{sample.cost, sample.plan == last_plan_ ? 1 : earlier};
  });
  return weighted;
}

void LaneSamples::AddBound(double bytes, double seconds) {
  if (!(bytes > 0) || !(seconds > 0)) return;
  const bool quicker =
      quickest_.bytes == 0 || seconds * quickest_.bytes < quickest_.seconds * bytes;
  if (quicker) quickest_ = {bytes, seconds};
}

transport::CostLine LaneSamples::Believed(const transport::CostLine& prior) const {
  // Measured while others were at it, it may be far too slow.
  const double prior_s = prior.Seconds(quickest_.bytes);
  if (quickest_.bytes == 0 || !(prior_s > quickest_.seconds)) return prior;
  const double share = quickest_.seconds / prior_s;
  return {prior.startup_s * share, prior.s_per_byte * share};
}

transport::CostLine LaneSamples::Fit(const transport::CostLine& prior) const {
  if (samples_.size() < kSamplesMin) return Believed(prior);
  return transport::FitBlocks(WeightedSamples(), Believed(prior));
}

}  // namespace headrace::service
