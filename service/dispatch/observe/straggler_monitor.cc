#include "service/dispatch/observe/straggler_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/observe/wait_reports.h"

namespace headrace::service {
namespace {

constexpr std::array<LatePlace, kLatePlaces> kPlaces = {
    LatePlace::kOperation,  LatePlace::kOperationMoves, LatePlace::kHead,
    LatePlace::kBlockMoves, LatePlace::kPair,           LatePlace::kPairMoves};

bool Gathers(const Operation& operation) {
  return operation.state == Operation::State::kGathering && !operation.failure;
}

// What is held back on purpose is not late.
bool Moves(const Operation& operation) {
  const bool moves =
      operation.state == Operation::State::kWaiting || operation.state == Operation::State::kMoving;
  const bool held = operation.reason == ipc::WaitReason::kPaused ||
                    operation.reason == ipc::WaitReason::kRateLimit ||
                    operation.reason == ipc::WaitReason::kInterleaved;
  return moves && !held && !operation.failure;
}

// The first in order for which `waits` holds; null when there is none.
template <typename Operations, typename Waits>
const Operation* FirstOf(const Operations& operations, Waits waits) {
  const Operation* first = nullptr;
  for (const Operation& operation : operations) {
    if (!waits(operation)) continue;
    if (first == nullptr || operation.spec.sequence < first->spec.sequence) first = &operation;
  }
  return first;
}

const Operation* FirstPairOf(const Job& job, bool (*waits)(const Operation&)) {
  const Operation* first = nullptr;
  const Pairs& pairs = job.pairs();
  for (std::size_t place = 0; place < pairs.capacity(); ++place) {
    const Operation& operation = pairs.pair(place).operation;
    // Nobody waits for the receive of a message that is here.
    if (!waits(operation) || pairs.pair(place).data_size > 0) continue;
    if (first == nullptr || operation.spec.sequence < first->spec.sequence) first = &operation;
  }
  return first;
}

LateWait WaitOf(const Operation* operation, TimeNs since_ns) {
  return operation == nullptr ? LateWait{} : LateWait{operation->spec.sequence, since_ns};
}

}  // namespace

LateWait StragglerMonitor::Find(const Job& job, LatePlace place) {
  if (job.in_force.paused || job.failed) return {};
  const Operation* first = nullptr;
  switch (place) {
    case LatePlace::kOperation:
      if (job.open.operations > 0) first = FirstOf(job.operations(), Gathers);
      return WaitOf(first, first == nullptr ? 0 : first->posts.opened_ns);
    case LatePlace::kOperationMoves:
      if (job.open.operations > 0) first = FirstOf(job.operations(), Moves);
      return WaitOf(first, first == nullptr ? 0 : first->since_ns);
    case LatePlace::kHead:
      return FindHead(job);
    case LatePlace::kBlockMoves:
      if (job.gradients) first = FirstOf(job.gradients->operations(), Moves);
      return WaitOf(first, first == nullptr ? 0 : first->since_ns);
    case LatePlace::kPair:
      if (job.open.operations > 0) first = FirstPairOf(job, Gathers);
      return WaitOf(first, first == nullptr ? 0 : first->posts.opened_ns);
    case LatePlace::kPairMoves:
      if (job.open.operations > 0) first = FirstPairOf(job, Moves);
      return WaitOf(first, first == nullptr ? 0 : first->since_ns);
  }
  return {};
}

// Somebody waits for the head when any gradient is open. It waits since the missing one was posted
// by the first rank, or, when nobody has posted that, since anything else was: a backward pass may
// take its time as long as gradients come.
LateWait StragglerMonitor::FindHead(const Job& job) {
  if (!job.gradients || job.gradients_failure || !job.gradients->AnyOpen()) return {};
  Gradients& gradients = *job.gradients;
  TimeNs oldest_ns = kNever;
  TimeNs newest_ns = 0;
  for (std::uint32_t tensor = 0; tensor < gradients.count(); ++tensor) {
    if (gradients.posts(tensor).ranks == 0) continue;
    oldest_ns = std::min(oldest_ns, gradients.posts(tensor).opened_ns);
    newest_ns = std::max(newest_ns, gradients.posts(tensor).opened_ns);
  }
  // Nothing moves at all, for want of nodes or of a plan.
  if (!job.formed() || gradients.plan() == nullptr) return {UINT64_MAX, oldest_ns};
  if (gradients.Head() == nullptr) return {};  // a plan is agreed on right now
  if (gradients.head_index() == 0 && job.hold.until_ns != 0) return {};
  const auto missing = gradients.Missing(job.local_ranks());
  // The lanes have too much, or the iteration before: that is the moving blocks' wait.
  if (!missing || gradients.IterationOf(*missing) != gradients.head_iteration()) return {};
  const TimeNs since_ns =
      gradients.posts(*missing).ranks != 0 ? gradients.posts(*missing).opened_ns : newest_ns;
  return {gradients.head_iteration() << 32U | *missing, since_ns};
}

bool StragglerMonitor::StillWaits(const Job& job, LatePlace place, const LateWait& wait) {
  if (place == LatePlace::kHead) return FindHead(job).number == wait.number;
  const Operation& operation = job.slot(wait.number);
  if (operation.spec.sequence != wait.number) return false;
  if (place == LatePlace::kOperation || place == LatePlace::kPair) return Gathers(operation);
  // Whatever moves on is new.
  return Moves(operation) && operation.since_ns == wait.since_ns;
}

void StragglerMonitor::Follow(const Jobs& jobs, TimeNs now) {
  for (const std::unique_ptr<Job>& job : jobs) {
    FollowJob(*job, now);
    if (!job->busy()) continue;
    next_check_ = std::min(next_check_, LateAt(now));
    if (job->nodes() != nullptr) next_check_ = std::min(next_check_, now + kAskAfter);
  }
}

void StragglerMonitor::FollowJob(const Job& job, TimeNs now) {
  StragglerState& state = job.record->stragglers;
  if (std::exchange(state.was_paused, job.in_force.paused) && !job.in_force.paused)
    state.not_before_ns.fill(now);
  if (state.reported_count == 0) return;
  for (const LatePlace place : kPlaces) {
    const auto index = static_cast<std::size_t>(place);
    StragglerState::Reported& reported = state.reported[index];
    if (reported.wait.number == 0) continue;
    const bool over =
        job.in_force.paused || job.failed || (place == LatePlace::kHead && job.gradients_failure);
    if (!over && StillWaits(job, place, reported.wait)) continue;
    // What failed has its own event.
    const bool failed = place == LatePlace::kHead
                            ? job.gradients_failure.has_value()
                            : job.slot(reported.wait.number).failure.has_value();
    if (!over && !failed && !reported.subject.empty()) {
      const TimeNs waited_ns = now - std::max(reported.wait.since_ns, state.not_before_ns[index]);
      events_.Announce(
          job, Code::kOk,
          fmt::format("{} went on after {}", reported.subject, FormatSeconds(waited_ns)));
    }
    state.not_before_ns[index] = now;
    reported = {};
    HR_CHECK(state.reported_count > 0, index);
    --state.reported_count;
  }
}

bool StragglerMonitor::Check(const Jobs& jobs, TimeNs now) {
  if (now < next_check_) return false;
  next_check_ = kNever;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->busy() && !job->in_force.paused)
      next_check_ = std::min(next_check_, CheckJob(*job, now));
  }
  return true;
}

TimeNs StragglerMonitor::CheckJob(const Job& job, TimeNs now) {
  StragglerState& state = job.record->stragglers;
  if (job.nodes() != nullptr && now - state.asked_ns >= kAskAgain) Ask(job, now);
  TimeNs next_ns = job.nodes() != nullptr ? now + kAskAgain : kNever;
  for (const LatePlace place : kPlaces) {
    const auto index = static_cast<std::size_t>(place);
    const LateWait wait = Find(job, place);
    if (wait.number == 0 || state.reported[index].wait.number != 0) continue;
    const TimeNs late_ns = LateAt(std::max(wait.since_ns, state.not_before_ns[index]));
    if (late_ns <= now) {
      Report(job, place, wait, now);
    } else {
      next_ns = std::min(next_ns, late_ns);
    }
  }
  // What waits behind the first has its bound too.
  return std::min(next_ns, LateAt(now));
}

void StragglerMonitor::Ask(const Job& job, TimeNs now) {
  // Some of its blocks may be at other stages; those between nodes are found where lanes are asked.
  const auto long_on_lane = [now](const Operation& operation) {
    return operation.state == Operation::State::kMoving && !operation.failure &&
           now - operation.since_ns >= kAskAfter;
  };
  const Operation* first = nullptr;
  if (job.open.operations > 0) first = FirstOf(job.operations(), long_on_lane);
  if (first != nullptr) lanes_.Ask(job, *first);
  const Operation* planned = nullptr;
  if (job.gradients) planned = FirstOf(job.gradients->operations(), long_on_lane);
  if (planned != nullptr) lanes_.Ask(job, *planned);
  if (first != nullptr || planned != nullptr) job.record->stragglers.asked_ns = now;
}

void StragglerMonitor::Report(const Job& job, LatePlace place, const LateWait& wait, TimeNs now) {
  StragglerState& state = job.record->stragglers;
  const auto index = static_cast<std::size_t>(place);
  ++board_.counters.late_reports;
  HR_CHECK(state.reported[index].wait.number == 0 && state.reported_count < kLatePlaces, index);
  state.reported[index] = {.wait = wait, .subject = {}};
  ++state.reported_count;
  if (!MayLog(state, now)) return;
  const TimeNs waited_ns = now - std::max(wait.since_ns, state.not_before_ns[index]);
  WaitReport report;
  if (place == LatePlace::kHead) {
    report = ReportHeadWait(job, waited_ns);
  } else if (place == LatePlace::kOperation || place == LatePlace::kPair) {
    report = ReportOperationWait(job, job.slot(wait.number), waited_ns);
  } else {
    report = ReportMoveWait(job, job.slot(wait.number), lanes_, waited_ns);
  }
  events_.Announce(job, Code::kTimeout, report.text);
  if (!report.to_others.empty()) {
    // Peers that is that far behind sends the other nodes nothing; they see this node's lane.
    peers_.TrySend(RankLate{job.id(), std::move(report.to_others)});
  }
  state.reported[index].subject = std::move(report.subject);
}

bool StragglerMonitor::MayLog(StragglerState& state, TimeNs now) {
  const TimeNs refilled = (now - state.refilled_ns) / kLogTokenEvery;
  state.log_tokens = static_cast<std::uint32_t>(
      std::min<TimeNs>(kLogTokensMax, TimeNs{state.log_tokens} + refilled));
  state.refilled_ns += refilled * kLogTokenEvery;
  if (state.log_tokens == 0) return false;
  HR_CHECK(state.log_tokens <= kLogTokensMax, state.log_tokens);
  --state.log_tokens;
  return true;
}

void StragglerMonitor::Postpone(const Jobs& jobs, TimeNs now) {
  for (const std::unique_ptr<Job>& job : jobs) job->record->stragglers.not_before_ns.fill(now);
}

}  // namespace headrace::service
