#include "service/dispatch/job/lane_samples.h"

#include <algorithm>
#include <span>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// What a sample of an earlier plan weighs, once there are enough of the last one.
constexpr double kEarlierPlanWeight = 0.25;

}  // namespace

double LaneSamples::SecondsOf(TimeNs begin_ns, const transport::Completion& completion,
                              TimeNs now) {
  const TimeNs seen_ns = now - std::max(begin_ns, settled_ns_);
  const TimeNs on_lane_ns = completion.end_ns - std::max(completion.begin_ns, ended_ns_);
  settled_ns_ = now;
  ended_ns_ = completion.end_ns;
  return static_cast<double>(std::max(seen_ns, on_lane_ns)) / kSecond;
}

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
  recent_[recent_count_++ % kRecentMax] = {bytes, seconds};
}

transport::CostSample LaneSamples::Quick() const {
  std::array<transport::CostSample, kRecentMax> sorted = recent_;
  const std::span<transport::CostSample> recent(sorted.data(), std::min(recent_count_, kRecentMax));
  std::ranges::sort(recent, {}, [](const transport::CostSample& sample) {
    return sample.seconds / sample.bytes;
  });
  double left = 0;
  for (const transport::CostSample& sample : recent) left += kQuickShare * sample.bytes;
  for (const transport::CostSample& sample : recent) {
    left -= sample.bytes;
    if (left <= 0) return sample;
  }
  return {};
}

transport::CostLine LaneSamples::Believed(const transport::CostLine& prior) const {
  // Measured while others were at it, it may be far too slow.
  const transport::CostSample quick = Quick();
  const double prior_s = prior.Seconds(quick.bytes);
  if (quick.bytes == 0 || !(prior_s > quick.seconds)) return prior;
  const double share = quick.seconds / prior_s;
  return {prior.startup_s * share, prior.s_per_byte * share};
}

transport::CostLine LaneSamples::Fit(const transport::CostLine& prior) const {
  if (samples_.size() < kSamplesMin) return Believed(prior);
  return transport::FitBlocks(WeightedSamples(), Believed(prior));
}

}  // namespace headrace::service
