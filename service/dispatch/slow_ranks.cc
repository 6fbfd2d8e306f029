#include "service/dispatch/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// In each bound so many windows fit, where they are not longer for kWindowMin.
constexpr TimeNs kWindowsPerBound = 8;

TimeNs BoundOf(const SlowRanksState& slow) { return TimeNs{slow.bound.seconds} * kSecond; }

// Whether the node that says it has the rank: no other may speak for it.
bool IsFromNodeOf(const Job& job, const Steering& steering, std::uint32_t rank) {
  if (rank >= job.world_size()) return false;
  if (!job.spans_nodes()) return true;
  if (job.nodes() == nullptr || steering.node.empty()) return job.IsHere(rank);
  return job.nodes()->nodes[NodeOf(*job.nodes(), rank)].name == steering.node;
}

SlowRank SlowRankOf(std::uint32_t rank, const SlowStreak& streak, TimeNs now) {
  const std::uint64_t percent = streak.own * 100 / std::max<std::uint64_t>(streak.others, 1);
  return {.rank = rank,
          .percent =
              static_cast<std::uint32_t>(std::min<std::uint64_t>(percent, SlowRank::kPercentMax)),
          .seconds = static_cast<std::uint32_t>(
              std::min<TimeNs>((now - streak.since_ns) / kSecond, 2 * kSlowBoundMaxS))};
}

// What the client says of its waits, as one number that changes when any of it does: also when a
// wait in another job begins.
std::uint64_t WaitsOf(const Session& session) {
  return session.WaitedNs() << 1U | (session.WaitsElsewhere() ? 1U : 0U);
}

// What people do with the job: nobody can be late then.
bool IsHeld(const Job& job) {
  return job.in_force.paused || job.in_force.draining || job.steering.frozen_since_ns != 0;
}

// "for 31 s its own work has taken 2.4 times as long as the median of the others'"
std::string HowSlow(const SlowRank& slow) {
  if (slow.stalled) {
    return fmt::format("for {} s it has posted nothing and waited for nothing, and the others wait",
                       slow.seconds);
  }
  return fmt::format(
      "for {} s its own work has taken {}{:.1f} times as long as the median of the "
      "others'",
      slow.seconds, slow.percent == SlowRank::kPercentMax ? "over " : "", slow.percent / 100.0);
}

}  // namespace

TimeNs SlowRanks::WindowOf(const SlowBound& bound) {
  return std::max(kWindowMin, TimeNs{bound.seconds} * kSecond / kWindowsPerBound);
}

std::optional<SlowRanks::Eviction> SlowRanks::Handle(Job& job, const Steering& steering,
                                                     TimeNs now) {
  if (steering.kind == SteeringKind::kOwnShare) {
    const OwnShare own = OwnShare::Of(steering.value);
    if (IsFromNodeOf(job, steering, own.rank)) OnOwnShare(job, own, now);
    return std::nullopt;
  }
  if (steering.kind == SteeringKind::kRankState) {
    const RankState state = RankState::Of(steering.value);
    if (IsFromNodeOf(job, steering, state.rank)) OnRankState(job, state, now);
    return std::nullopt;
  }
  if (!IsFromNodeOf(job, steering, 0)) return std::nullopt;
  if (steering.kind == SteeringKind::kSlowRank) {
    return OnSlowRank(job, SlowRank::Of(steering.value));
  }
  SetBound(job, SlowBound::Of(steering.value), now);
  return std::nullopt;
}

void SlowRanks::SetBound(Job& job, const SlowBound& bound, TimeNs now) {
  job.slow = {};
  job.slow.bound = bound;
  job.slow.windows.resize(job.world_size());
  job.slow.shares.resize(job.world_size());
  job.slow.streaks.resize(job.world_size());
  job.slow.activities.resize(job.world_size());
  job.slow.states.resize(job.world_size());
  if (bound.seconds == 0) return;
  CheckAgainAt(job, now + WindowOf(bound));
  CompareWithTimeout(job);
}

void SlowRanks::CompareWithTimeout(const Job& job) {
  const SlowBound& bound = job.slow.bound;
  const Session* const first = job.ranks().front().session.get();
  if (bound.least_world == 0 || first == nullptr) return;
  // The looks are so far apart, and the last one may have come just before.
  const TimeNs within_ns = BoundOf(job.slow) + 2 * WindowOf(bound);
  const TimeNs timeout_ns = TimeNs{first->identity().timeout_ms} * kMillisecond;
  if (timeout_ns == 0 || timeout_ns > within_ns) return;
  events_.Announce(
      job, Code::kTimeout,
      fmt::format("HEADRACE_SLOW={}:evict evicts a rank that stands still within {} s, and "
                  "operations that wait for it end the job after {} s: allow less, or more as "
                  "HEADRACE_TIMEOUT_MS",
                  bound.seconds, within_ns / kSecond, timeout_ns / kSecond));
}

// A window ends with a record that follows a wait, since there an iteration has ended, if there is
// one soon: of a rank that waits between some of its operations only, parts of iterations differ.
void SlowRanks::Measure(Job& job, std::uint32_t rank, TimeNs now) {
  SlowRanksState& slow = job.slow;
  const JobRank& entry = job.rank_entry(rank);
  if (!job.formed() || job.failed || job.world_size() < 2 || entry.session == nullptr) return;
  if (slow.activities[rank].said != RankState::Kind::kActive) {
    ReportState(job, rank, RankState::Kind::kActive, now);
  }
  if (slow.next_check_ns == kNever) CheckAgainAt(job, now + WindowOf(slow.bound));
  if (slow.counts_from_ns == 0) slow.counts_from_ns = now + BoundOf(slow);
  if (now < slow.counts_from_ns) return;
  OwnWindow& window = slow.windows[rank];
  const std::uint64_t waited_ns = entry.session->WaitedNs();
  const bool has_waited = std::exchange(window.last_waited_ns, waited_ns) != waited_ns;
  const TimeNs length_ns = now - window.begin_ns;
  const TimeNs least_ns = WindowOf(slow.bound);
  const bool begins = window.begin_ns == 0;
  if (!begins && length_ns < (has_waited ? least_ns : 2 * least_ns)) return;
  const std::uint64_t waited = waited_ns - window.waited_ns;
  window.begin_ns = now;
  window.waited_ns = waited_ns;
  if (begins) return;
  // The client's word: it cannot have waited for longer than there was time.
  const std::uint64_t part = waited / static_cast<std::uint64_t>(length_ns / OwnShare::kWhole);
  const OwnShare own{.rank = rank,
                     .share = OwnShare::kWhole - static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                                     part, OwnShare::kWhole))};
  if (job.IsHere(0)) return OnOwnShare(job, own, now);
  // Once a second for each rank at most; one that is lost delays a round.
  peers_.TrySend(SteerJob{
      job.id(), {.kind = SteeringKind::kOwnShare, .value = own.Value(), .uid = job.owner_uid()}});
}

void SlowRanks::OnOwnShare(Job& job, const OwnShare& own, TimeNs now) {
  SlowRanksState& slow = job.slow;
  if (slow.bound.seconds == 0 || job.world_size() < 2 || !job.IsHere(0)) return;
  slow.shares[own.rank] = own.share;
  slow.told |= Bit(own.rank);
  if (slow.told != ~RankMask{0} >> (64 - job.world_size())) return;
  slow.told = 0;
  EndRound(job, now);
}

// The upper one of two: one rank alone that has little to do, or says that it only waits, makes
// nobody slow, unless there are but two.
std::uint32_t SlowRanks::MedianOfOthers(const SlowRanksState& slow, std::uint32_t rank) {
  std::array<std::uint32_t, transport::kMembersMax> others{};
  std::size_t count = 0;
  for (std::uint32_t other = 0; other < slow.shares.size(); ++other) {
    if (other != rank) others.at(count++) = slow.shares[other];
  }
  HR_CHECK(count > 0, rank);
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(others.begin(), middle, others.begin() + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

bool SlowRanks::MayEvict(const Job& job) {
  const std::uint32_t least = job.slow.bound.least_world;
  return least != 0 && job.world_size() > least && !job.slow.evicting && !IsHeld(job);
}

void SlowRanks::EndRound(Job& job, TimeNs now) {
  SlowRanksState& slow = job.slow;
  std::optional<std::uint32_t> slowest;  // of those over the bound
  for (std::uint32_t rank = 0; rank < job.world_size(); ++rank) {
    const std::uint32_t own = slow.shares[rank];
    const std::uint32_t others = MedianOfOthers(slow, rank);
    SlowStreak& streak = slow.streaks[rank];
    if (own < others + kExcessMin || own * 100 < others * kSlowPercent) {
      if (std::exchange(streak, {}).named) ReportSlowRank(job, {.rank = rank});
      continue;
    }
    if (streak.rounds++ == 0) streak.since_ns = now;
    streak.own += own;
    streak.others += others;
    if (streak.rounds < kRoundsMin || now - streak.since_ns < BoundOf(slow)) continue;
    if (!slowest ||
        streak.own * slow.streaks[*slowest].others > slow.streaks[*slowest].own * streak.others) {
      slowest = rank;
    }
    if (!std::exchange(streak.named, true)) ReportSlowRank(job, SlowRankOf(rank, streak, now));
  }
  const bool plans = job.gradients && job.gradients->offered() != nullptr;
  if (!slowest || plans || !MayEvict(job)) return;
  HaveEvicted(job, SlowRankOf(*slowest, slow.streaks[*slowest], now));
}

void SlowRanks::HaveEvicted(Job& job, SlowRank slow) {
  job.slow.evicting = true;
  slow.evicted = true;
  ReportSlowRank(job, slow);
}

void SlowRanks::CheckAgainAt(Job& job, TimeNs next_ns) {
  job.slow.next_check_ns = next_ns;
  next_check_ = std::min(next_check_, next_ns);
}

bool SlowRanks::Check(const Jobs& jobs, TimeNs now) {
  if (now < next_check_) return false;
  next_check_ = kNever;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->slow.next_check_ns <= now) CheckJob(*job, now);
    next_check_ = std::min(next_check_, job->slow.next_check_ns);
  }
  return true;
}

void SlowRanks::Postpone(const Jobs& jobs, TimeNs by_ns) {
  for (const std::unique_ptr<Job>& job : jobs) {
    for (RankActivity& activity : job->slow.activities) {
      if (activity.since_ns != 0) activity.since_ns += by_ns;
    }
  }
}

void SlowRanks::CheckJob(Job& job, TimeNs now) {
  SlowRanksState& slow = job.slow;
  slow.next_check_ns = kNever;
  if (job.failed || job.world_size() < 2) return;
  bool again = !job.formed() || IsHeld(job);
  if (job.formed() && slow.counts_from_ns == 0) slow.counts_from_ns = now + BoundOf(slow);
  const bool counts = job.formed() && !IsHeld(job) && now >= slow.counts_from_ns;
  for (const std::uint32_t rank : job.local()) {
    const JobRank& entry = job.rank_entry(rank);
    if (entry.session != nullptr && !entry.gone) again |= CheckRank(job, rank, counts, now);
  }
  if (job.IsHere(0)) {
    // It may not have been allowed before.
    FindStalled(job, now);
    again |= slow.stalled != 0;
  }
  // Where all ranks are idle nothing changes without a record.
  if (again) CheckAgainAt(job, now + WindowOf(slow.bound));
}

bool SlowRanks::CheckRank(Job& job, std::uint32_t rank, bool counts, TimeNs now) {
  using Kind = RankState::Kind;
  RankActivity& activity = job.slow.activities[rank];
  const JobRank& entry = job.rank_entry(rank);
  const RankActivity seen{.posted = entry.posted,
                          .ended = entry.ended,
                          .waited_ns = WaitsOf(*entry.session),
                          .since_ns = now,
                          .said = activity.said};
  const bool same = activity.since_ns != 0 && activity.posted == seen.posted &&
                    activity.ended == seen.ended && activity.waited_ns == seen.waited_ns;
  if (!same || !counts) {
    activity = seen;
    if (activity.said != Kind::kActive) ReportState(job, rank, Kind::kActive, now);
    return true;
  }
  if (now - activity.since_ns < BoundOf(job.slow)) return true;
  const Kind kind = Waits(job, rank) ? Kind::kWaits : Kind::kStalled;
  if (kind != activity.said) ReportState(job, rank, kind, now);
  return kind == Kind::kWaits || entry.session->CountsElsewhere();
}

// What it has posted is open because of others: other ranks here have not posted it, or it moves.
// A gradient may be open for another reason: its block waits for another one of this very rank.
bool SlowRanks::Waits(const Job& job, std::uint32_t rank) {
  const Session* const session = job.ranks()[rank].session.get();
  bool waits = session != nullptr && session->WaitsElsewhere();
  if (job.open.operations > 0) {
    job.ForEachOpen([&](const Operation& operation) {
      waits |= !operation.failure && (operation.posts.ready() & Bit(rank)) != 0;
    });
  }
  if (waits || !job.gradients || job.gradients_failure || job.gradients->WaitsFor(rank)) {
    return waits;
  }
  for (std::uint32_t tensor = 0; tensor < job.gradients->count() && !waits; ++tensor) {
    waits = (job.gradients->posts(tensor).ready() & Bit(rank)) != 0;
  }
  return waits;
}

// At most twice in a bound for each rank, since it is idle for a bound before it is anything else.
void SlowRanks::ReportState(Job& job, std::uint32_t rank, RankState::Kind kind, TimeNs now) {
  RankActivity& activity = job.slow.activities[rank];
  activity.said = kind;
  RankState state{.rank = rank, .kind = kind};
  if (kind != RankState::Kind::kActive) {
    state.seconds = static_cast<std::uint32_t>(
        std::min<TimeNs>((now - activity.since_ns) / kSecond, 2 * kSlowBoundMaxS));
  }
  if (job.IsHere(0)) return OnRankState(job, state, now);
  peers_.Send(
      SteerJob{job.id(),
               {.kind = SteeringKind::kRankState, .value = state.Value(), .uid = job.owner_uid()}});
}

void SlowRanks::OnRankState(Job& job, const RankState& state, TimeNs now) {
  SlowRanksState& slow = job.slow;
  if (slow.bound.seconds == 0 || job.world_size() < 2 || !job.IsHere(0)) return;
  slow.states[state.rank] = {.kind = state.kind, .since_ns = now - state.seconds * kSecond};
  if (state.kind == RankState::Kind::kStalled) {
    // Whether it may be evicted can change by what no rank does.
    if (slow.next_check_ns == kNever) CheckAgainAt(job, now + WindowOf(slow.bound));
    return FindStalled(job, now);
  }
  const bool was_named = (slow.stalled & Bit(state.rank)) != 0;
  slow.stalled &= ~Bit(state.rank);
  if (was_named && !slow.streaks[state.rank].named) ReportSlowRank(job, {.rank = state.rank});
  FindStalled(job, now);
}

void SlowRanks::FindStalled(Job& job, TimeNs now) {
  using Kind = RankState::Kind;
  SlowRanksState& slow = job.slow;
  if (slow.evicting || IsHeld(job)) return;
  std::optional<std::uint32_t> longest;
  bool waits = false;
  for (std::uint32_t rank = 0; rank < job.world_size(); ++rank) {
    const SlowRanksState::Known& known = slow.states[rank];
    if (known.kind == Kind::kActive) return;
    waits |= known.kind == Kind::kWaits;
    if (known.kind != Kind::kStalled) continue;
    if (!longest || known.since_ns < slow.states[*longest].since_ns) longest = rank;
  }
  if (!waits || !longest) return;
  const auto describe = [&](std::uint32_t rank) {
    const TimeNs seconds = (now - slow.states[rank].since_ns) / kSecond;
    return SlowRank{
        .rank = rank,
        .stalled = true,
        .percent = SlowRank::kPercentMax,
        .seconds = static_cast<std::uint32_t>(std::min<TimeNs>(seconds, 2 * kSlowBoundMaxS))};
  };
  for (std::uint32_t rank = 0; rank < job.world_size(); ++rank) {
    if (slow.states[rank].kind != Kind::kStalled || (slow.stalled & Bit(rank)) != 0) continue;
    slow.stalled |= Bit(rank);
    if (!slow.streaks[rank].named) ReportSlowRank(job, describe(rank));
  }
  if (!MayEvict(job)) return;
  HaveEvicted(job, describe(*longest));
}

// A rank is named, and is not any more, once in a bound at most.
void SlowRanks::ReportSlowRank(const Job& job, const SlowRank& slow) {
  peers_.Send(SteerJob{
      job.id(), {.kind = SteeringKind::kSlowRank, .value = slow.Value(), .uid = job.owner_uid()}});
}

std::optional<SlowRanks::Eviction> SlowRanks::OnSlowRank(Job& job, const SlowRank& slow) {
  SlowRanksState& notes = job.slow;
  if (notes.bound.seconds == 0 || slow.rank >= job.world_size()) return std::nullopt;
  const std::string who = job.DescribeRank(slow.rank);
  const std::string how = HowSlow(slow);
  const bool was_named = (notes.slow & Bit(slow.rank)) != 0;
  if (slow.evicted) {
    const std::uint32_t least = notes.bound.least_world;
    if (!was_named || least == 0 || job.world_size() <= least) return std::nullopt;
    const char* const what = slow.stalled ? "standing still" : "slow";
    events_.Announce(job, Code::kTimeout, fmt::format("{} is evicted as {}: {}", who, what, how));
    return Eviction{slow.rank, fmt::format("was evicted as {}: {}, and the job allows {} s of that "
                                           "(HEADRACE_SLOW); it may join again: start it with "
                                           "HEADRACE_ROLE=join",
                                           what, how, notes.bound.seconds)};
  }
  const bool is_slow = slow.percent != 0;
  if (is_slow == was_named) return std::nullopt;
  notes.slow ^= Bit(slow.rank);
  const char* const what = slow.stalled ? "stands still" : "is slow";
  notes.text = is_slow ? fmt::format("{} {}: {}", who, what, how) : "";
  if (is_slow) ++board_.counters.slow_reports;
  events_.Announce(job, is_slow ? Code::kTimeout : Code::kOk,
                   is_slow ? notes.text : fmt::format("{} is slow no longer", who));
  job.Changed();
  return std::nullopt;
}

}  // namespace headrace::service
