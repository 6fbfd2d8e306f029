#include "service/dispatch/interleaving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

constexpr std::size_t kJobsTracked = 64;
constexpr std::size_t kPairsMax = 64;
constexpr schedule::InterleaveLimits kLimits;

std::uint8_t LaneOf(const Job& job) { return job.nodes() != nullptr ? 1 : 0; }

double Milliseconds(double seconds) { return seconds * 1e3; }

// Puts in front whom the others are shifted against: the one with the longest period, since who is
// faster must be held now and then anyway; among about equal ones the first by name, then by user,
// so that all nodes that see them choose alike.
void PutReferenceFirst(std::span<InterleavedJob> interleaved) {
  double longest_s = 0;
  for (const InterleavedJob& one : interleaved)
    longest_s = std::max(longest_s, one.rhythm.period_s);
  std::ranges::sort(interleaved, [longest_s](const InterleavedJob& a, const InterleavedJob& b) {
    const auto is_long = [longest_s](const InterleavedJob& one) {
      return one.rhythm.period_s >= (1 - kLimits.tolerance) * longest_s;
    };
    if (is_long(a) != is_long(b)) return is_long(a);
    const int order = a.job->name().compare(b.job->name());
    return order != 0 ? order < 0 : a.job->owner_uid() < b.job->owner_uid();
  });
}

schedule::Shifts Shift(std::span<const InterleavedJob> interleaved) {
  std::array<schedule::Rhythm, schedule::kRhythmsMax> rhythms;
  const double first_s = interleaved.front().rhythm.origin_s;
  for (std::size_t i = 0; i < interleaved.size(); ++i) {
    rhythms[i] = interleaved[i].rhythm;
    // The job's iteration that stands nearest to the first one's: periods as they are now are
    // longer than they would be alone, so what is far away stands elsewhere on the circle.
    const double behind_s = rhythms[i].origin_s - first_s;
    rhythms[i].origin_s -= interleaved[i].period_s * std::round(behind_s / interleaved[i].period_s);
  }
  return schedule::Interleave(std::span(rhythms).first(interleaved.size()), kLimits);
}

}  // namespace

Interleaving::Interleaving(Flow& flow) : flow_(flow) {
  tracked_.reserve(kJobsTracked);
  pairs_.reserve(kPairsMax);
}

Interleaving::Tracked& Interleaving::Track(JobId job) {
  const auto found = std::ranges::find(tracked_, job, &Tracked::job);
  if (found != tracked_.end()) return *found;
  return tracked_.emplace_back(Tracked{.job = job});
}

void Interleaving::Forget(const Jobs& jobs) {
  const auto lives = [&jobs](JobId id) {
    return std::ranges::any_of(jobs, [id](const auto& job) { return job->id() == id; });
  };
  std::erase_if(tracked_, [&](const Tracked& tracked) { return !lives(tracked.job); });
  std::erase_if(pairs_, [&](const Pair& pair) {
    return !lives(pair.sides[0].job) || !lives(pair.sides[1].job);
  });
}

void Interleaving::Check(Jobs& jobs, TimeNs now) {
  if (jobs.size() < 2) return;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (!Trains(*job) || job->measured.times->last_ended() < Track(job->id()).next_check) continue;
    Forget(jobs);
    Compare(jobs, LaneOf(*job), now);
  }
}

void Interleaving::Compare(Jobs& jobs, std::uint8_t lane, TimeNs now) {
  const std::span<InterleavedJob> interleaved = Gather(jobs, lane, now);
  Judge(interleaved);
  if (interleaved.size() < 2) return;
  PutReferenceFirst(interleaved);
  Shifts shifts = Shift(interleaved);
  if (interleaved.size() == 2 && shifts.verdict == Shifts::Verdict::kShift) {
    // It may be much cheaper to hold the other one.
    std::swap(interleaved[0], interleaved[1]);
    const Shifts other = Shift(interleaved);
    if (other.verdict == Shifts::Verdict::kShift && other.shift_s[1] < shifts.shift_s[1] / 2) {
      shifts = other;
    } else {
      std::swap(interleaved[0], interleaved[1]);
    }
  }
  if (shifts.verdict != Shifts::Verdict::kShift) return;
  for (std::size_t i = 1; i < interleaved.size(); ++i)
    HoldBack(interleaved[i], interleaved[0], shifts, i, now);
}

std::span<InterleavedJob> Interleaving::Gather(Jobs& jobs, std::uint8_t lane, TimeNs now) {
  const double rate = RateOf(lane);
  std::size_t count = 0;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (!Trains(*job) || LaneOf(*job) != lane) continue;
    Track(job->id()).next_check = job->measured.times->last_ended() + kEvery;
    // If there are more jobs than that, the oldest count.
    if (count == interleaved_.size() || rate <= 0) continue;
    if (!interleaved_[count].Measure(*job, rate, now)) continue;
    AddDelayBudget(interleaved_[count]);
    ++count;
  }
  return std::span(interleaved_).first(count);
}

double Interleaving::RateOf(std::uint8_t lane) {
  // Rails carry a share of each block at the same time: together they are one lane.
  const std::size_t end = lane == 0 ? 1 : flow_.lanes().count();
  LaneSeen seen;
  for (std::size_t i = lane; i < end; ++i) {
    const auto index = static_cast<std::uint8_t>(i);
    seen.bytes += flow_.lanes().Now(index).bytes_moved;
    seen.busy_ns = std::max(seen.busy_ns, flow_.lanes().BusyNs(index));
  }
  // Since the look before the last one, so that the time is never short.
  LaneSeen& older = lanes_before_[lane];
  LaneSeen& newer = lanes_[lane];
  const auto bytes = static_cast<double>(seen.bytes - older.bytes);
  const auto busy_ns = static_cast<double>(seen.busy_ns - older.busy_ns);
  older = newer;
  newer = seen;
  return busy_ns <= 0 ? 0 : bytes / busy_ns * static_cast<double>(kSecond);
}

void Interleaving::AddDelayBudget(const InterleavedJob& one) {
  Tracked& tracked = Track(one.job->id());
  const double most_s = one.period_s;
  HR_CHECK(one.iteration >= tracked.budget_until, one.iteration, tracked.budget_until);
  const auto iterations = static_cast<double>(one.iteration - tracked.budget_until);
  const bool first = tracked.budget_until == 0;
  tracked.delay_budget_s += first ? most_s : kDelayShare * iterations * one.period_s;
  tracked.delay_budget_s = std::min(tracked.delay_budget_s, most_s);
  tracked.budget_until = one.iteration;
}

Interleaving::Pair& Interleaving::PairOf(const InterleavedJob& held, const InterleavedJob& other) {
  Pair fresh;
  fresh.sides[0] = {.job = held.job->id(), .plan = held.PlanVersion()};
  fresh.sides[1] = {.job = other.job->id(), .plan = other.PlanVersion()};
  for (Pair& pair : pairs_) {
    const bool turned = pair.sides[0].job == other.job->id();
    if (pair.sides[turned ? 1 : 0].job != held.job->id()) continue;
    if (pair.sides[turned ? 0 : 1].job != other.job->id()) continue;
    if (turned && !pair.pending) std::swap(pair.sides[0], pair.sides[1]);
    const auto old = std::ranges::find_if(pair.sides, [&](const Pair::Side& side) {
      return side.plan != (side.job == held.job->id() ? held : other).PlanVersion();
    });
    // Another plan uses the lane at other times: what was learnt is worth nothing any more.
    if (old != pair.sides.end()) pair = fresh;
    return pair;
  }
  if (pairs_.size() == kPairsMax) pairs_.erase(pairs_.begin());
  HR_CHECK(pairs_.size() < kPairsMax, pairs_.size());
  return pairs_.emplace_back(fresh);
}

void Interleaving::HoldBack(const InterleavedJob& held, const InterleavedJob& other,
                            const Shifts& shifts, std::size_t index, TimeNs now) {
  Job& job = *held.job;
  // Somebody else's hold stays, and of a job of several nodes one node decides.
  if (shifts.shift_s[index] <= 0 || job.hold.until_ns != 0 || !job.rank_entry(0).session) return;
  Pair& pair = PairOf(held, other);
  if (pair.pending || pair.violations >= kViolations) return;
  const std::array<const InterleavedJob*, 2> interleaved{&held, &other};
  const std::array<double, 2> promised_s{shifts.Expected(index, held.rhythm.period_s),
                                         shifts.Expected(0, other.rhythm.period_s)};
  double gain = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    gain = std::max(gain, 1 - promised_s[i] / interleaved[i]->period_s);
  }
  if (gain < kLimits.margin) return;
  Tracked& tracked = Track(job.id());
  schedule::AloneIteration alone = *held.alone;
  const double hold_s = alone.HoldFor(shifts.shift_s[index], tracked.delay_budget_s);
  if (hold_s <= 0) return;
  const double until_s = held.BorderReady() + hold_s;
  const auto until_ns = static_cast<TimeNs>(until_s * static_cast<double>(kSecond));
  if (until_ns <= now) return;
  tracked.delay_budget_s -= hold_s;
  pair.pending = true;
  for (std::size_t i = 0; i < 2; ++i) {
    pair.sides[i].judged_at = interleaved[i]->Border() + InterleavedJob::kMeasured;
    pair.sides[i].before_s = interleaved[i]->period_s;
    pair.sides[i].promised_s = promised_s[i];
  }
  flow_.events().Report(
      job, Code::kOk,
      fmt::format("held back {:.0f} ms before iteration {} so that it takes turns "
                  "with job {} on {}: their iterations of {:.0f} and {:.0f} ms should "
                  "become {:.0f} and {:.0f}",
                  Milliseconds(hold_s), held.Border(), other.job->name(),
                  flow_.lanes().Name(LaneOf(job)), Milliseconds(held.period_s),
                  Milliseconds(other.period_s), Milliseconds(promised_s[0]),
                  Milliseconds(promised_s[1])));
  flow_.plans().SetHold(job, {until_ns, ipc::WaitReason::kInterleaved, other.job->id().value}, now);
}

void Interleaving::Judge(std::span<InterleavedJob> interleaved) {
  for (Pair& pair : pairs_) {
    if (!pair.pending) continue;
    std::array<double, 2> now_s{};
    std::array<Job*, 2> jobs{};
    bool over = true;
    for (std::size_t i = 0; i < 2; ++i) {
      const Pair::Side& side = pair.sides[i];
      const auto one = std::ranges::find_if(
          interleaved, [&side](const InterleavedJob& each) { return each.job->id() == side.job; });
      over &= one != interleaved.end() && one->iteration >= side.judged_at;
      if (!over) break;
      // Iterations by another plan say nothing about the shift.
      if (one->PlanVersion() != side.plan) pair.pending = false;
      now_s[i] = one->period_s;
      jobs[i] = one->job;
    }
    if (over && pair.pending) Judge(pair, *jobs[0], now_s);
  }
}

void Interleaving::Judge(Pair& pair, Job& held, const std::array<double, 2>& now_s) {
  HR_CHECK(pair.pending);
  pair.pending = false;
  double gained_s = 0;
  double promised_s = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    gained_s += pair.sides[i].before_s - now_s[i];
    promised_s += pair.sides[i].before_s - pair.sides[i].promised_s;
  }
  if (gained_s >= kWorthIt * promised_s) {
    pair.violations = 0;
    return;
  }
  if (++pair.violations < kViolations) return;
  flow_.events().Report(
      held, Code::kOk,
      fmt::format("held back no more: iterations of {:.0f} ms, and of {:.0f} ms "
                  "of the other job, became {:.0f} and {:.0f} where {:.0f} and {:.0f} were "
                  "expected",
                  Milliseconds(pair.sides[0].before_s), Milliseconds(pair.sides[1].before_s),
                  Milliseconds(now_s[0]), Milliseconds(now_s[1]),
                  Milliseconds(pair.sides[0].promised_s), Milliseconds(pair.sides[1].promised_s)));
}

}  // namespace headrace::service
