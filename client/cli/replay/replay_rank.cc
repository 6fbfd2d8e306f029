#include "client/cli/replay/replay_rank.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::replay {
namespace {

// Iterations at the begin whose values are looked at one by one.
constexpr std::uint64_t kFilledAtFirst = 3;
// The first plan of a job is for recording: it knows no times.
constexpr std::uint32_t kRecordingPlan = 1;

constexpr std::uint32_t kForwardPass = 0;
constexpr std::uint32_t kBackwardPass = 1;

std::string InForce(const std::optional<ipc::PlanRow>& plan) {
  if (!plan || plan->version == 0) return "the job has none";
  return fmt::format("plan {} by {} from iteration {} is there", plan->version,
                     ipc::GetText(plan->policy), plan->from_iteration);
}

}  // namespace

bool IsInForce(const std::optional<ipc::PlanRow>& plan, const std::string& policy,
               std::uint64_t iteration) {
  if (!plan || plan->version <= kRecordingPlan || plan->next_version != 0) return false;
  // One iteration more, because the one before ended under another plan.
  if (plan->from_iteration >= iteration) return false;
  return policy.empty() || ipc::GetText(plan->policy) == policy;
}

ReplayRank::ReplayRank(RankSession& session, const PlanWatch& watch, const ReplayConfig& config,
                       std::uint32_t rank, std::uint32_t world_size)
    : session_(session),
      watch_(watch),
      config_(config),
      rank_(rank),
      values_(Values::For(config.profile.dtype, world_size)) {
  for (IterationTrace& trace : result_.traces)
    trace.spans.reserve(3 * config.profile.tensors.size());
  result_.iterations.reserve(config.iterations);
}

Result<ReplayResult> ReplayRank::Run() {
  WakeOnTime();
  pace_.Start(MonotonicNow());
  for (;;) {
    // The forward pass of the iteration after the last that counts ends that one.
    if (Status status = Forward(); !status) return status.error();
    const TimeNs now = MonotonicNow();
    if (counts_from_) {
      current_.whole_ns = now - result_.trace(iteration_).begin_ns;
      result_.iterations.push_back(current_);
      if (result_.iterations.size() == config_.iterations) break;
    } else if (Status status = BetweenPasses(); !status) {
      return status.error();
    }
    if (Status status = Backward(); !status) return status.error();
  }
  if (Status status = CheckValues(); !status) return status.error();
  result_.warmup = *counts_from_ - 1;
  return std::move(result_);
}

void ReplayRank::SleepToDue(bool exactly) {
  const TimeNs now = MonotonicNow();
  const std::optional<TimeNs> until = pace_.SleepUntil(now);
  if (until) {
    SleepUntil(*until);
  } else if (exactly && pace_.due_ns() > now) {
    SleepUntil(pace_.due_ns());
  }
}

TimeNs ReplayRank::TimeOf(double seconds, std::uint32_t pass, std::size_t tensor) const {
  return Jittered(Nanoseconds(seconds), config_.jitter, config_.seed, rank_, iteration_, pass,
                  tensor);
}

void ReplayRank::Note(Activity::Kind kind, std::size_t tensor, TimeNs begin_ns, TimeNs end_ns) {
  if (end_ns <= begin_ns) return;
  result_.traces[iteration_ % ReplayResult::kTraces].spans.push_back(
      {kind, tensor, begin_ns, end_ns});
}

Status ReplayRank::ReachTensor(std::size_t index) {
  SleepToDue(false);
  const Result<bool> open = session_.IsOpen(index);
  if (!open) return open.error();
  const TimeNs begin = MonotonicNow();
  if (Status status = session_.Wait(index); !status) return status;
  if (*open) {
    const TimeNs now = MonotonicNow();
    Note(Activity::Kind::kWait, index, begin, now);
    current_.waited_ns += now - begin;
    pace_.StandStillUntil(now);
  }
  return {};
}

Status ReplayRank::Forward() {
  for (std::size_t index = 0; index < session_.count(); ++index) {
    if (Status status = ReachTensor(index); !status) return status;
    const TimeNs begin = pace_.due_ns();
    pace_.Compute(TimeOf(config_.profile.tensors[index].forward_s, kForwardPass, index));
    Note(Activity::Kind::kForward, index, begin, pace_.due_ns());
    current_.forward_ns += pace_.due_ns() - begin;
  }
  SleepToDue(true);
  return session_.EndForward();
}

Status ReplayRank::Backward() {
  ++iteration_;
  current_ = {};
  IterationTrace& trace = result_.traces[iteration_ % ReplayResult::kTraces];
  trace.iteration = iteration_;
  trace.spans.clear();
  if (Status status = session_.BeginBackward(); !status) return status;
  const TimeNs begin = MonotonicNow();
  trace.begin_ns = begin;
  pace_.Start(begin);
  for (std::size_t index = session_.count(); index-- > 0;) {
    const TimeNs before = pace_.due_ns();
    pace_.Compute(TimeOf(config_.profile.tensors[index].backward_s, kBackwardPass, index));
    Note(Activity::Kind::kBackward, index, before, pace_.due_ns());
    SleepToDue(false);
    if (Status status = session_.Post(index); !status) return status;
  }
  current_.backward_ns = std::max(MonotonicNow(), pace_.due_ns()) - begin;
  return {};
}

// Between the passes of an iteration that does not count there is time for what a model would not
// do: it belongs to no gradient.
Status ReplayRank::BetweenPasses() {
  if (Status status = CheckValues(); !status) return status;
  const Result<bool> counts = MayCount();
  if (!counts) return counts.error();
  const std::uint64_t next = iteration_ + 1;
  if (*counts) counts_from_ = next;
  if (*counts || next <= kFilledAtFirst) FillValues();
  return {};
}

Result<bool> ReplayRank::MayCount() {
  const std::uint64_t next = iteration_ + 1;
  const std::optional<ipc::PlanRow> plan = watch_.Plan();
  const bool in_force = IsInForce(plan, config_.policy, next);
  // Ranks look at their boards at different moments, but must play equally many iterations.
  const Result<bool> agreed = session_.AllAgree(in_force && next > config_.warmup);
  if (!agreed || *agreed || next < std::max(kWarmupMax, config_.warmup)) return agreed;
  return Error(
      Code::kTimeout,
      fmt::format("no plan{} was in force on all nodes after {} iterations; here {}",
                  config_.policy.empty() ? "" : " by " + config_.policy, next - 1, InForce(plan)));
}

void ReplayRank::FillValues() {
  if (!values_) return;
  filled_in_ = iteration_ + 1;
  for (std::size_t index = 0; index < session_.count(); ++index) {
    values_->Fill(session_.gradient(index), index, *filled_in_, rank_);
  }
}

Status ReplayRank::CheckValues() {
  if (!filled_in_) return {};
  for (std::size_t index = 0; index < session_.count(); ++index) {
    const auto wrong = values_->FindWrong(session_.gradient(index), index, *filled_in_);
    if (!wrong) continue;
    return Error(
        Code::kCorrupt,
        fmt::format("element {} of gradient {} ({}) of rank {} is not the average of all "
                    "ranks in iteration {}",
                    *wrong, index, config_.profile.tensors[index].name, rank_, iteration_));
  }
  result_.values_checked += iteration_ - *filled_in_ + 1;
  filled_in_.reset();
  return {};
}

}  // namespace headrace::replay
