#include "service/dispatch/blocks/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

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
    case Kind::kSends:
      return steering.value == 0 ? "sends and receives in turn with other blocks"
                                 : "sends and receives before other blocks";
    default:  // the others end the job, or are its leader's
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

Failure DrainedFailure(const Job& job) {
  const DrainState& drain = job.steering.drain;
  const std::string after =
      !job.gradients ? fmt::format("operation {}", drain.operations)
      : drain.operations == 0
          ? fmt::format("iteration {}", drain.iterations)
          : fmt::format("operation {} and iteration {}", drain.operations, drain.iterations);
  if (MovesOver(drain.asked)) {
    const std::string& node = drain.asked.node;
    return {
        CodeOfEnd(drain.asked),
        fmt::format("closed after {} to continue later: the service{} is stopping, as uid {} asked",
                    after, node.empty() ? "" : " on node " + node, drain.asked.uid)};
  }
  return {CodeOfEnd(drain.asked),
          fmt::format("drained by {} after {}", AskedBy(drain.asked), after)};
}

void SettingChanges::ReportLostSettings(const Job& job) {
  if (!job.failed && !job.in_force.draining) return;  // its ranks have left
  std::vector<std::string> settings;
  const auto add = [&settings](Kind kind, std::uint64_t value) {
    settings.push_back(What({.kind = kind, .value = value}));
  };
  constexpr schedule::JobShare kDefault;
  if (job.in_force.paused) add(Kind::kPause, 0);
  if (job.in_force.share.weight != kDefault.weight) add(Kind::kWeight, job.in_force.share.weight);
  if (job.in_force.share.priority != kDefault.priority)
    add(Kind::kPriority, job.in_force.share.priority);
  if (job.in_force.share.limit_bytes_per_s != kDefault.limit_bytes_per_s) {
    add(Kind::kLimit, job.in_force.share.limit_bytes_per_s);
  }
  if (!job.in_force.share.by_urgency)
    add(Kind::kSends, static_cast<std::uint64_t>(SendsClass::kSame));
  if (settings.empty()) return;
  events_.Announce(
      job, Code::kOk,
      fmt::format("its settings have ended with it ({}): if its ranks come back, set them "
                  "again",
                  fmt::join(settings, ", ")));
}

std::uint64_t SettingChanges::NextOperation(const Job& job) {
  std::uint64_t posted = 0;
  for (const JobRank& entry : job.ranks()) posted = std::max(posted, entry.operations);
  return posted + 1;
}

void SettingChanges::Request(Job& job, const Steering& steering, TimeNs now) {
  job.steering.waiting[static_cast<std::size_t>(steering.kind)] = steering;
  job.steering.any_waiting = true;
  if (StandsAtBorder(job)) Apply(job, NextOperation(job), now);
}

void SettingChanges::Apply(Job& job, std::uint64_t next_operation, TimeNs now) {
  job.steering.any_waiting = false;
  const std::string from = job.gradients
                               ? fmt::format("iteration {}", job.gradients->head_iteration())
                               : fmt::format("operation {}", next_operation);
  const schedule::JobShare before = job.in_force.share;
  for (std::optional<Steering>& waiting : job.steering.waiting) {
    if (!waiting) continue;
    const Steering steering = *std::exchange(waiting, std::nullopt);
    if (steering.kind == Kind::kPause) {
      job.in_force.paused = true;
      job.in_force.paused_by = steering.uid;
      job.steering.paused_after = next_operation - 1;
    } else if (steering.kind == Kind::kWeight) {
      job.in_force.share.weight = static_cast<std::uint32_t>(steering.value);
    } else if (steering.kind == Kind::kPriority) {
      job.in_force.share.priority = static_cast<std::uint32_t>(steering.value);
    } else if (steering.kind == Kind::kLimit) {
      job.in_force.share.limit_bytes_per_s = steering.value;
    } else if (steering.kind == Kind::kSends) {
      job.in_force.share.by_urgency =
          steering.value == static_cast<std::uint64_t>(SendsClass::kAbove);
    }
    events_.AnnounceSteering(
        job, steering,
        fmt::format("{} from {} on, asked by {}", What(steering), from, AskedBy(steering)));
  }
  if (job.in_force.share != before) blocks_.SetShare(job, now);
  job.Changed();
}

}  // namespace headrace::service
