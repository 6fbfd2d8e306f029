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

// "for 31 s its own work has taken 2.4 times as long as the median of the others'"
std::string HowSlow(const SlowRank& slow) {
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
  if (!IsFromNodeOf(job, steering, 0)) return std::nullopt;
  if (steering.kind == SteeringKind::kSlowRank) {
    return OnSlowRank(job, SlowRank::Of(steering.value));
  }
  SetBound(job, SlowBound::Of(steering.value));
  return std::nullopt;
}

void SlowRanks::SetBound(Job& job, const SlowBound& bound) {
  job.slow = {};
  job.slow.bound = bound;
  job.slow.windows.resize(job.world_size());
  job.slow.shares.resize(job.world_size());
  job.slow.streaks.resize(job.world_size());
}

// A window ends with a record that follows a wait, since there an iteration has ended, if there is
// one soon: of a rank that waits between some of its operations only, parts of iterations differ.
void SlowRanks::Measure(Job& job, std::uint32_t rank, TimeNs now) {
  SlowRanksState& slow = job.slow;
  const Member& member = job.member(rank);
  if (!job.formed() || job.failed || job.world_size() < 2 || member.session == nullptr) return;
  if (slow.counts_from_ns == 0) slow.counts_from_ns = now + BoundOf(slow);
  if (now < slow.counts_from_ns) return;
  OwnWindow& window = slow.windows[rank];
  const std::uint64_t waited_ns = member.session->WaitedNs();
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
  const bool stands = job.paused || job.draining || job.steering.frozen_since_ns != 0;
  const bool plans = job.gradients && job.gradients->offered() != nullptr;
  return least != 0 && job.world_size() > least && !job.slow.evicting && !stands && !plans;
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
  if (!slowest || !MayEvict(job)) return;
  slow.evicting = true;
  SlowRank evicted = SlowRankOf(*slowest, slow.streaks[*slowest], now);
  evicted.evicted = true;
  ReportSlowRank(job, evicted);
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
    events_.Announce(job, Code::kTimeout, fmt::format("{} is evicted as slow: {}", who, how));
    return Eviction{slow.rank,
                    fmt::format("was evicted as slow: {}, and the job allows {} s of that "
                                "(HEADRACE_SLOW); it may join again: start it with "
                                "HEADRACE_ROLE=join",
                                how, notes.bound.seconds)};
  }
  const bool is_slow = slow.percent != 0;
  if (is_slow == was_named) return std::nullopt;
  notes.slow ^= Bit(slow.rank);
  notes.text = is_slow ? fmt::format("{} is slow: {}", who, how) : "";
  if (is_slow) ++board_.counters.slow_reports;
  events_.Announce(job, is_slow ? Code::kTimeout : Code::kOk,
                   is_slow ? notes.text : fmt::format("{} is slow no longer", who));
  job.Changed();
  return std::nullopt;
}

}  // namespace headrace::service
