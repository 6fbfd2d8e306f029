#include "service/schedule/interleave.h"

#include <algorithm>
#include <cmath>

#include "ipc/base/check.h"

namespace headrace::schedule {
namespace {

// Seconds between two uses into which nothing of another job fits.
constexpr double kNothingBetween = 1e-6;

double Wrapped(double time_s, double circle_s) {
  const double wrapped = std::fmod(time_s, circle_s);
  return wrapped < 0 ? wrapped + circle_s : wrapped;
}

struct Edge {
  double at_s = 0;
  double change = 0;  // of what is asked for
};

// What some jobs together ask of the lane, around the circle from 0 on.
class Demand {
 public:
  explicit Demand(double circle_s) : circle_s_(circle_s) {}

  void Add(const Rhythm& job, std::uint32_t turns, double shift_s) {
    for (std::uint32_t turn = 0; turn < turns; ++turn) {
      for (const Use& use : job.uses()) {
        AddArc(job.origin_s + shift_s + turn * circle_s_ / turns + use.begin_s, use);
      }
    }
  }

  std::span<const Edge> edges() const { return {edges_.data(), count_}; }

  // Beyond the whole lane, integrated around the circle. Puts the edges in order.
  double Excess() {
    std::sort(edges_.begin(), edges_.begin() + static_cast<std::ptrdiff_t>(count_),
              [](const Edge& a, const Edge& b) { return a.at_s < b.at_s; });
    double excess_s = 0;
    double level = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      level += edges_[i].change;
      const double until_s = i + 1 < count_ ? edges_[i + 1].at_s : circle_s_;
      excess_s += std::max(0.0, level - 1) * (until_s - edges_[i].at_s);
    }
    return excess_s;
  }

 private:
  // Begin and end of each, and both once more of one that passes the circle's 0.
  static constexpr std::size_t kEdgesMax = 4 * kUsesMax * kTurnsMax * kRhythmsMax;

  void AddArc(double begin_s, const Use& use) {
    const double length_s = std::min(use.length_s, circle_s_);
    const double begin = Wrapped(begin_s, circle_s_);
    const double end = begin + length_s;
    Push(begin, use.share);
    if (end > circle_s_) {
      Push(0, use.share);
      Push(end - circle_s_, -use.share);
    } else {
      Push(end, -use.share);
    }
  }

  void Push(double at_s, double change) { edges_[count_++] = {at_s, change}; }

  double circle_s_;
  std::array<Edge, kEdgesMax> edges_;
  std::size_t count_ = 0;
};

// How many iterations of each job a circle holds; nothing when no small circle fits them all.
bool FindCircle(std::span<const Rhythm> jobs, double tolerance, Shifts& found) {
  for (std::uint32_t first = 1; first <= kTurnsMax; ++first) {
    found.circle_s = first * jobs[0].period_s;
    bool fits = true;
    for (std::size_t i = 0; i < jobs.size() && fits; ++i) {
      const double turns = std::round(found.circle_s / jobs[i].period_s);
      fits = turns >= 1 && turns <= kTurnsMax &&
             std::abs(turns * jobs[i].period_s / found.circle_s - 1) <= tolerance;
      if (fits) found.turns[i] = static_cast<std::uint32_t>(turns);
    }
    if (fits) return true;
  }
  return false;
}

// The shifts of one job at which the excess over `placed` can have a corner, in order.
class Corners {
 public:
  Corners(const Demand& placed, const Rhythm& job, double period_s) {
    shifts_[count_++] = 0;
    for (const Edge& edge : placed.edges()) {
      for (const Use& use : job.uses()) {
        shifts_[count_++] = Wrapped(edge.at_s - job.origin_s - use.begin_s, period_s);
        shifts_[count_++] = Wrapped(edge.at_s - job.origin_s - use.end_s(), period_s);
      }
    }
    std::sort(shifts_.begin(), shifts_.begin() + static_cast<std::ptrdiff_t>(count_));
  }

  std::span<const double> shifts() const { return {shifts_.data(), count_}; }

 private:
  static constexpr std::size_t kEdgesMax = 4 * kUsesMax * kTurnsMax * (kRhythmsMax - 1);
  std::array<double, 1 + kEdgesMax * 2 * kUsesMax> shifts_;
  std::size_t count_ = 0;
};

// Where the job adds least to those that are placed.
double PlaceOf(const Rhythm& job, std::uint32_t turns, const Demand& placed, double circle_s) {
  const double period_s = circle_s / turns;
  const double same_s = 1e-9 * circle_s;
  const Corners corners(placed, job, period_s);
  const std::span<const double> shifts = corners.shifts();
  std::array<double, 1 + 8 * kUsesMax * kUsesMax * kTurnsMax*(kRhythmsMax - 1)> excess;
  double least_s = HUGE_VAL;
  for (std::size_t i = 0; i < shifts.size(); ++i) {
    Demand together = placed;
    together.Add(job, turns, shifts[i]);
    excess[i] = together.Excess();
    least_s = std::min(least_s, excess[i]);
  }
  const auto is_least = [&](std::size_t i) {
    return excess[i % shifts.size()] <= least_s + same_s;
  };
  // Between two neighbouring corners the excess is linear: both least, all between is. The widest
  // such stretch, around the circle; a single corner is one without width.
  double best_s = 0;
  double widest_s = -1;
  for (std::size_t begin = 0; begin < shifts.size(); ++begin) {
    if (!is_least(begin) || is_least(begin + shifts.size() - 1)) continue;
    std::size_t end = begin;
    while (is_least(end + 1)) ++end;
    const double width_s = Wrapped(shifts[end % shifts.size()] - shifts[begin], period_s);
    if (width_s <= widest_s) continue;
    widest_s = width_s;
    best_s = Wrapped(shifts[begin] + width_s / 2, period_s);
  }
  return best_s;
}

}  // namespace

void Rhythm::AddUse(double begin_s, double end_s) {
  if (end_s <= begin_s) return;
  HR_CHECK(count_ == 0 || begin_s >= uses_[count_ - 1].end_s() - 1e-9, begin_s);
  uses_[count_++] = {.begin_s = begin_s, .length_s = end_s - begin_s};
  const bool touches = count_ > 1 && begin_s <= uses_[count_ - 2].end_s() + kNothingBetween;
  if (touches || count_ > kUsesMax) MergeNearest();
}

void Rhythm::MergeNearest() {
  std::size_t nearest = 0;
  for (std::size_t i = 1; i + 1 < count_; ++i) {
    const auto gap = [this](std::size_t at) { return uses_[at + 1].begin_s - uses_[at].end_s(); };
    if (gap(i) < gap(nearest)) nearest = i;
  }
  Use& one = uses_[nearest];
  const Use& next = uses_[nearest + 1];
  const double work_s = one.length_s * one.share + next.length_s * next.share;
  one.length_s = next.end_s() - one.begin_s;
  one.share = std::min(1.0, work_s / one.length_s);
  std::move(uses_.begin() + static_cast<std::ptrdiff_t>(nearest) + 2,
            uses_.begin() + static_cast<std::ptrdiff_t>(count_),
            uses_.begin() + static_cast<std::ptrdiff_t>(nearest) + 1);
  --count_;
}

double Rhythm::work_s() const {
  double work_s = 0;
  for (const Use& use : uses()) work_s += use.length_s * use.share;
  return work_s;
}

double ExcessOf(std::span<const Rhythm> jobs, double circle_s, std::span<const std::uint32_t> turns,
                std::span<const double> shift_s) {
  Demand demand(circle_s);
  for (std::size_t i = 0; i < jobs.size(); ++i) demand.Add(jobs[i], turns[i], shift_s[i]);
  return demand.Excess();
}

Shifts Interleave(std::span<const Rhythm> jobs, const InterleaveLimits& limits) {
  HR_CHECK(jobs.size() >= 2 && jobs.size() <= kRhythmsMax, jobs.size());
  Shifts found;
  for (const Rhythm& job : jobs) {
    if (!(job.period_s > 0)) return found;
  }
  if (!FindCircle(jobs, limits.tolerance, found)) {
    found.verdict = Shifts::Verdict::kNoCommonPeriod;
    return found;
  }
  double asked_s = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) asked_s += found.turns[i] * jobs[i].work_s();
  found.excess_s = ExcessOf(jobs, found.circle_s, found.turns, found.shift_s);
  found.least_excess_s = found.excess_s;
  if (asked_s > limits.full * found.circle_s) {
    found.verdict = Shifts::Verdict::kLaneFull;
    return found;
  }
  Shifts shifted = found;
  Demand placed(found.circle_s);
  placed.Add(jobs[0], found.turns[0], 0);
  for (std::size_t i = 1; i < jobs.size(); ++i) {
    shifted.shift_s[i] = PlaceOf(jobs[i], found.turns[i], placed, found.circle_s);
    placed.Add(jobs[i], found.turns[i], shifted.shift_s[i]);
  }
  shifted.least_excess_s = placed.Excess();
  if (found.excess_s - shifted.least_excess_s < limits.margin * found.circle_s) return found;
  if (shifted.least_excess_s > limits.left * found.circle_s) {
    found.verdict = Shifts::Verdict::kLaneFull;
    return found;
  }
  shifted.verdict = Shifts::Verdict::kShift;
  return shifted;
}

}  // namespace headrace::schedule
