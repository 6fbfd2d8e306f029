#include "service/dispatch/job/contention.h"

#include <algorithm>

#include "ipc/base/check.h"

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
// What two shares have apart, of their variances: below that they are one.
constexpr double kAlikeShare = 0.02;

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

void Contention::Add(std::size_t part, double seconds, const Pair& busy_s) {
  HR_CHECK(part < parts_.size(), part, parts_.size());
  if (!(seconds >= kPartMin && seconds <= kPartMax)) return;
  const double rate = 1 / seconds;
  PassPart& sums = parts_[part];
  sums.count += 1;
  sums.rate += rate;
  Pair busy{};
  for (std::size_t place = 0; place < plan::kLanePlaces; ++place) {
    busy[place] = std::clamp(busy_s[place] / seconds, 0.0, 1.0);
    sums.busy[place] += busy[place];
    sums.busy_busy[place] += busy[place] * busy[place];
    sums.busy_rate[place] += busy[place] * rate;
  }
  sums.busy_both += busy[0] * busy[1];
}

Contention::Normal Contention::Collect() {
  Normal normal;
  for (PassPart& part : parts_) {
    if (part.count >= 2) {
      const double lasts_s = part.count / part.rate;
      for (std::size_t place = 0; place < plan::kLanePlaces; ++place) {
        const double mean = part.busy[place] / part.count;
        const double tells_s = lasts_s * (part.busy_busy[place] - part.busy[place] * mean);
        normal.variance_s[place] += tells_s;
        normal.busy_s[place] += tells_s * mean;
        normal.covariance_s[place] +=
            lasts_s * lasts_s * (part.busy_rate[place] - part.rate * mean);
      }
      normal.both_s += lasts_s * (part.busy_both - part.busy[0] * part.busy[1] / part.count);
    }
    part = {};
  }
  return normal;
}

// By how much the rate falls with each share; never upwards. A place whose share hardly varies gets
// none. Where both vary alike nothing tells them apart, and they get the same.
Contention::Pair Contention::Slopes(const Normal& normal) {
  const auto& [variance, both, covariance, busy] = normal;
  const auto alone = [&](std::size_t place) {
    Pair slopes{};
    slopes[place] = std::min(0.0, covariance[place] / variance[place]);
    return slopes;
  };
  const bool in_node = variance[0] > kKnownMin / 100;
  const bool between = variance[1] > kKnownMin / 100;
  if (!in_node || !between) return in_node ? alone(0) : between ? alone(1) : Pair{};
  const double determinant = variance[0] * variance[1] - both * both;
  if (determinant < kAlikeShare * variance[0] * variance[1]) {
    const double all = variance[0] + variance[1] + 2 * both;
    if (!(all > kKnownMin / 100)) return {};
    const double slope = std::min(0.0, (covariance[0] + covariance[1]) / all);
    return {slope, slope};
  }
  const double first = (covariance[0] * variance[1] - covariance[1] * both) / determinant;
  const double second = (covariance[1] * variance[0] - covariance[0] * both) / determinant;
  if (first > 0) return alone(1);
  if (second > 0) return alone(0);
  return {first, second};
}

// Rates, and not times, because the busy share of a part that took long for another reason is no
// larger for it, and because a rate falls on a plane: (1 - share . busy) / work. A plane is fitted
// to all parts, each with its own mean taken off and weighing as much as it lasts.
void Contention::Update() {
  const Normal normal = Collect();
  const Pair slopes = Slopes(normal);
  // Where nothing is under way, of the mean rate: the mean is that at the mean busy shares.
  double idle_rate = 1;
  for (std::size_t place = 0; place < plan::kLanePlaces; ++place) {
    if (normal.variance_s[place] <= kKnownMin / 100) continue;
    idle_rate -= slopes[place] * normal.busy_s[place] / normal.variance_s[place];
  }
  for (std::size_t place = 0; place < plan::kLanePlaces; ++place) {
    const double variance_s = normal.variance_s[place];
    if (variance_s <= kKnownMin / 100) continue;
    const double share = std::clamp(-slopes[place] / idle_rate, 0.0, plan::kContentionMax);
    // Little knowledge says little: it is as if as much had been seen without any contention.
    const double old = known_[place] * kOldWeight;
    shares_[place] =
        (shares_[place] * (old + kKnownMin) + share * variance_s) / (old + kKnownMin + variance_s);
    known_[place] = old + variance_s;
  }
  const double sum = plan::SumOf(shares_);
  if (sum <= plan::kContentionMax) return;
  for (double& share : shares_) share *= plan::kContentionMax / sum;
  // To rounding.
  shares_[1] = std::min(shares_[1], plan::kContentionMax - shares_[0]);
}

}  // namespace headrace::service
