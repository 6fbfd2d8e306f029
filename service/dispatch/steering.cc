#include "service/dispatch/steering.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "service/dispatch/flow.h"

namespace headrace::service {
namespace {

using Kind = Steering::Kind;

std::string What(const Steering& steering) {
  switch (steering.kind) {
    case Kind::kPause:
      return "paused";
    case Kind::kWeight:
      return fmt::format("weight {}", steering.value);
    case Kind::kPriority:
      return fmt::format("priority {}", steering.value);
    case Kind::kLimit:
      if (steering.value == 0) return "no limit";
      return fmt::format("limit of {} bytes/s on each lane", steering.value);
    default:
      return "steered";
  }
}

// Whether nothing is between its begin and its end.
bool StandsAtBorder(const Job& job) {
  if (!job.gradients) return !job.busy();
  return job.gradients->head_index() == 0 && (job.gradients->AnyOpen() || !job.busy());
}

}  // namespace

std::string AskedBy(const Steering& steering) {
  if (steering.node.empty()) return fmt::format("uid {}", steering.uid);
  return fmt::format("uid {} on node {}", steering.uid, steering.node);
}

void Steersman::Tell(const Job& job, std::string text) {
  // A watch that is that far behind has enough to tell.
  watch_.TrySend(Event{Code::kOk, job.id(), fmt::format("job {}: {}", job.name(), text)});
}

void Steersman::TellLostSettings(const Job& job) {
  if (!job.failed && !job.draining) return;  // its ranks have left
  std::vector<std::string> settings;
  const auto add = [&settings](Kind kind, std::uint64_t value) {
    settings.push_back(What({.kind = kind, .value = value}));
  };
  constexpr schedule::JobShare kDefault;
  if (job.paused) add(Kind::kPause, 0);
  if (job.share.weight != kDefault.weight) add(Kind::kWeight, job.share.weight);
  if (job.share.priority != kDefault.priority) add(Kind::kPriority, job.share.priority);
  if (job.share.limit_bytes_per_s != kDefault.limit_bytes_per_s) {
    add(Kind::kLimit, job.share.limit_bytes_per_s);
  }
  if (settings.empty()) return;
  Tell(job, fmt::format("its settings have ended with it ({}): if its ranks come back, set them "
                        "again",
                        fmt::join(settings, ", ")));
}

std::uint64_t Steersman::NextOperation(const Job& job) {
  std::uint64_t posted = 0;
  for (const Member& member : job.members()) posted = std::max(posted, member.operations);
  return posted + 1;
}

void Steersman::Wish(Job& job, const Steering& steering, TimeNs now) {
  job.steering.waiting[static_cast<std::size_t>(steering.kind)] = steering;
  job.steering.any_waiting = true;
  if (StandsAtBorder(job)) Apply(job, NextOperation(job), now);
}

void Steersman::Apply(Job& job, std::uint64_t next_operation, TimeNs now) {
  job.steering.any_waiting = false;
  const std::string from = job.gradients
                               ? fmt::format("iteration {}", job.gradients->head_iteration())
                               : fmt::format("operation {}", next_operation);
  const schedule::JobShare before = job.share;
  for (std::optional<Steering>& waiting : job.steering.waiting) {
    if (!waiting) continue;
    const Steering steering = *std::exchange(waiting, std::nullopt);
    if (steering.kind == Kind::kPause) {
      job.paused = true;
      job.paused_by = steering.uid;
      job.steering.paused_after = next_operation - 1;
    } else if (steering.kind == Kind::kWeight) {
      job.share.weight = static_cast<std::uint32_t>(steering.value);
    } else if (steering.kind == Kind::kPriority) {
      job.share.priority = static_cast<std::uint32_t>(steering.value);
    } else if (steering.kind == Kind::kLimit) {
      job.share.limit_bytes_per_s = steering.value;
    }
    Tell(job, fmt::format("{} from {} on, asked by {}", What(steering), from, AskedBy(steering)));
  }
  if (job.share != before) blocks_.SetShare(job, now);
  job.dirty = true;
}

void Flow::Steer(Job& job, const Steering& steering, TimeNs now) {
  if (job.failed) return;
  switch (steering.kind) {
    case Kind::kPause:
      if (job.paused) return;
      // From the wish on, since other nodes may be at their border already: what they have not
      // begun must not time out here.
      if (job.steering.frozen_since_ns == 0) job.steering.frozen_since_ns = now;
      return steersman_.Wish(job, steering, now);
    case Kind::kResume:
      return Resume(job, steering, now);
    case Kind::kDrain:
      return DrainJob(job, steering, now);
    case Kind::kDrainOperations:
    case Kind::kDrainIterations:
      return TakePromise(job, steering, now);
    case Kind::kCancel:
      return FailJob(job, {Code::kCancelled, "cancelled by " + AskedBy(steering)}, Found::kHere,
                     now);
    case Kind::kWeight:
    case Kind::kPriority:
    case Kind::kLimit:
      return steersman_.Wish(job, steering, now);
  }
}

void Flow::PostponeJob(Job& job, TimeNs by_ns) {
  for (Operation& operation : job.operations()) {
    if (operation.open() && operation.deadline_ns != kNever) operation.deadline_ns += by_ns;
  }
  if (job.gradients) job.gradients->PostponeDeadlines(by_ns);
}

void Flow::Postpone(Jobs& jobs, TimeNs by_ns, TimeNs now) {
  for (const std::unique_ptr<Job>& job : jobs) {
    job->late.not_before_ns.fill(now);
    // Those of a job that is to be paused stand still as it is.
    if (job->steering.frozen_since_ns == 0) PostponeJob(*job, by_ns);
  }
  if (next_deadline_ != kNever) next_deadline_ += by_ns;
}

void Flow::Resume(Job& job, const Steering& steering, TimeNs now) {
  SteeringNotes& notes = job.steering;
  notes.waiting[static_cast<std::size_t>(Kind::kPause)].reset();
  if (notes.frozen_since_ns == 0) return;
  const TimeNs frozen_ns = now - std::exchange(notes.frozen_since_ns, 0);
  PostponeJob(job, frozen_ns);
  next_deadline_ = std::min(next_deadline_, now);  // to be found again
  job.paused = false;
  notes.paused_after = UINT64_MAX;
  job.dirty = true;
  steersman_.Tell(job, fmt::format("goes on after a pause of {} ms, asked by {}",
                                   frozen_ns / kMillisecond, AskedBy(steering)));
  BeginHeldBack(job, now);
}

void Flow::BeginHeldBack(Job& job, TimeNs now) {
  std::vector<std::uint64_t> ready;
  for (const Operation& operation : job.operations()) {
    if (operation.state == Operation::State::kGathering && IsReady(job, operation)) {
      ready.push_back(operation.shape.sequence);
    }
  }
  std::ranges::sort(ready);
  for (const std::uint64_t sequence : ready) {
    Operation& operation = job.slot(sequence);
    // An earlier one of them may have failed the job.
    if (operation.state != Operation::State::kGathering) continue;
    MakeReady(job, operation, now);
  }
  ShowGatheringAgain(job);
  if (job.gradients) plans_.Advance(job, now);
}

}  // namespace headrace::service
