#include "service/dispatch/job/contention.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "service/plan/recording.h"

namespace headrace::service {
namespace {

// Shorter parts are too rough: posts and clocks take microseconds themselves.
constexpr double kPartMin = 20e-6;  // seconds
// Longer ones are no part of an iteration: clients' clocks may say anything.
constexpr double kPartMax = 3600;
// What an older estimate weighs beside a new one of the same worth.
constexpr double kOldWeight = 0.7;
// Seconds of computing, times the variance of the busy share: below that next to nothing is known.
constexpr double kKnownMin = 1e-3;

}  // namespace

void BusyTimes::Add(double begin_s, double end_s) {
  if (end_s > begin_s) spans_.push_back({begin_s, end_s});
}

void BusyTimes::Seal() {
  std::ranges::sort(spans_, {}, &Interval::begin_s);
  std::size_t kept = 0;
  for (const Interval& each : spans_) {
    if (kept > 0 && each.begin_s <= spans_[kept - 1].end_s) {
      spans_[kept - 1].end_s = std::max(spans_[kept - 1].end_s, each.end_s);
    } else {
      spans_[kept++] = each;
    }
  }
  spans_.resize(kept);
  at_ = 0;
}

double BusyTimes::Within(double begin_s, double end_s) {
  while (at_ < spans_.size() && spans_[at_].end_s <= begin_s) ++at_;
  double within_s = 0;
  for (std::size_t i = at_; i < spans_.size() && spans_[i].begin_s < end_s; ++i) {
    within_s += std::min(end_s, spans_[i].end_s) - std::max(begin_s, spans_[i].begin_s);
  }
  return within_s;
}

void Contention::Add(std::size_t part, double seconds, double busy_s) {
  HR_CHECK(part < parts_.size(), part, parts_.size());
  if (!(seconds >= kPartMin && seconds <= kPartMax)) return;
  const double busy = std::clamp(busy_s / seconds, 0.0, 1.0);
  const double rate = 1 / seconds;
  PassPart& sums = parts_[part];
  sums.count += 1;
  sums.busy += busy;
  sums.rate += rate;
  sums.busy_busy += busy * busy;
  sums.busy_rate += busy * rate;
}

// Rates, and not times, because the busy share of a part that took long for another reason is no
// larger for it, and because a rate falls on a straight line: (1 - share * busy) / work. A line is
// fitted to all parts, each with its own mean taken off and weighing as much as it lasts.
void Contention::Update() {
  double variance_s = 0;
  double covariance_s = 0;
  double busy_s = 0;
  for (PassPart& part : parts_) {
    if (part.count >= 2) {
      const double lasts_s = part.count / part.rate;
      const double mean = part.busy / part.count;
      const double tells_s = lasts_s * (part.busy_busy - part.busy * mean);
      variance_s += tells_s;
      busy_s += tells_s * mean;
      covariance_s += lasts_s * lasts_s * (part.busy_rate - part.rate * mean);
    }
    part = {};
  }
  if (variance_s <= kKnownMin / 100) return;
  const double slope = covariance_s / variance_s;
  // Where nothing is under way, of the mean rate: the mean is that at the mean busy share.
  const double idle_rate = 1 - slope * busy_s / variance_s;
  const double share = std::clamp(-slope / idle_rate, 0.0, plan::kContentionMax);
  // Little knowledge says little: it is as if as much had been seen without any contention.
  const double old = known_ * kOldWeight;
  share_ = (share_ * (old + kKnownMin) + share * variance_s) / (old + kKnownMin + variance_s);
  known_ = old + variance_s;
}

}  // namespace headrace::service
