#include "service/dispatch/plan_flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/late_words.h"
#include "service/dispatch/overlap.h"
#include "service/dispatch/rows.h"

namespace headrace::service {
namespace {

// The first iterations tell what the first real plan is made for; afterwards drift is looked for
// once a window.
constexpr std::uint64_t kFirstTimes = 3;
constexpr std::uint64_t kSecondTimes = 6;
// Of later iterations one in so many is shown on the board.
constexpr std::uint64_t kShownEvery = 4;

std::size_t PlaceOf(const Job& job, std::uint32_t rank) {
  const auto found = std::ranges::lower_bound(job.local(), rank);
  return static_cast<std::size_t>(found - job.local().begin());
}

// Ranks of one node hand in GPUs' memory, all of them, or the host's.
PlanFlow::Trouble CheckMemory(const Job& job, const Session& session) {
  const std::int8_t device = session.gradients()->device;
  for (std::uint32_t rank = 0; rank < job.world_size(); ++rank) {
    const Session* const other = job.members()[rank].session.get();
    if (other == nullptr || other == &session || other->gradients() == nullptr) continue;
    const std::int8_t others = other->gradients()->device;
    if ((device == transport::kHost) == (others == transport::kHost)) continue;
    return Failure{Code::kMismatch,
                   fmt::format("{} has its gradients {}, {} {}: the ranks of a node hand in GPUs' "
                               "memory, all of them, or the host's",
                               job.DescribeRank(rank), DescribeMemory(others),
                               job.DescribeRank(session.identity().rank), DescribeMemory(device))};
  }
  return {};
}

}  // namespace

void TellRank(Job& job, BoardWriter& board, std::uint32_t rank, std::uint64_t record,
              const Failure* failure) {
  Member& member = job.member(rank);
  HR_CHECK(member.session != nullptr, rank, record);
  const Code code = failure != nullptr ? failure->code : Code::kOk;
  const std::string_view text = failure != nullptr ? std::string_view(failure->text) : "";
  if (member.session->completions().End(record, code, text)) ++board.counters.wake_calls;
  ++member.ended;
  --job.use->posts;
}

PlanFlow::Trouble PlanFlow::SetLayout(Job& job, Session& session, const struct SetLayout& message) {
  if (Status status = session.SetLayout(message.first, message.layout); !status) {
    return Failure{
        status.error().code(),
        fmt::format("{}: {}", job.DescribeRank(session.identity().rank), status.error().text())};
  }
  if (job.gradients) return CheckMemory(job, session);
  job.gradients = std::make_unique<Gradients>(message.layout, job.world_size());
  recorder_.SetLayout(job);
  job.plan_row = board_.TakePlanRow();
  job.head_row = board_.TakeQueueRow();
  if (job.failure) job.gradients_failure = job.failure;
  ShowPlan(job);
  return {};
}

void PlanFlow::Offer(Job& job, const OfferPlan& message, TimeNs now) {
  // One that could not be formed has failed, and has no use for a plan.
  if (!job.gradients || job.gradients_failure || !job.formed()) return;
  HR_CHECK(message.plan->blocks.size() > 0, job.id().value);
  if (!job.times) {
    job.times = std::make_unique<IterationTimes>(job.gradients->count(), job.local().size());
    const bool several = job.nodes() != nullptr;
    job.samples.resize(several ? 1 + job.nodes()->costs.size() : 1);
  }
  const std::uint64_t begun =
      job.gradients->Offer(std::make_shared<const WirePlan>(
                               MakeWirePlan(message.plan, message.hash, job.gradients->layout())),
                           kSwitchSlack);
  // One answer an offer: peers, which has no time to take them, offers nothing either.
  peers_.Send(PlanTaken{job.id(), message.plan->version, begun});
  ShowPlan(job);
  ShowHead(job, now);
}

PlanFlow::Trouble PlanFlow::Switch(Job& job, const SwitchPlan& message, TimeNs now) {
  if (!job.gradients || job.gradients_failure) return {};
  if (!job.gradients->Switch(message.version, message.from_iteration)) {
    return Failure{
        Code::kInternal,
        fmt::format("plan {} cannot begin with iteration {}: it was not offered here, or "
                    "the iteration has begun",
                    message.version, message.from_iteration)};
  }
  Advance(job, now);
  ShowPlan(job);
  return {};
}

PlanFlow::Trouble PlanFlow::Post(Job& job, std::uint32_t rank, const ipc::GradientRecord& record,
                                 bool refusing, TimeNs now) {
  if (job.gradients_failure) return job.gradients_failure;
  const Session& session = *job.member(rank).session;
  const Result<std::uint32_t> tensor = CheckGradient(record, session);
  if (!tensor) {
    ++board_.counters.records_refused;
    return Failure{tensor.error().code(),
                   fmt::format("{} posted a gradient that cannot be moved: {}",
                               job.DescribeRank(rank), tensor.error().text())};
  }
  Gradients& gradients = *job.gradients;
  const std::uint64_t iteration = gradients.IterationOf(*tensor);
  if (gradients.IsOpen(rank, *tensor)) {
    ++board_.counters.records_refused;
    return Failure{Code::kInvalidArgument,
                   fmt::format("{} posted {} again before it had ended: wait for it first",
                               job.DescribeRank(rank), job.DescribeGradient(*tensor))};
  }
  const DrainNotes& drain = job.steering.drain;
  if (drain.agreed && iteration > drain.iterations) {
    // This post alone: what is under way is to end well.
    const Failure drained = DrainedFailure(job);
    TellRank(job, board_, rank, record.commit, &drained);
    return {};
  }
  if (iteration > job.last_iteration) return Failure{Code::kPeerLost, job.left_cause};
  if (refusing && gradients.posted(*tensor) == 0) {
    return Failure{Code::kUnavailable, "the service is shutting down"};
  }
  const std::uint32_t timeout_ms =
      record.timeout_ms != 0 ? record.timeout_ms : session.identity().timeout_ms;
  const bool awaits = (record.flags & ipc::kRecordAwaitsWord) != 0;
  if (!awaits) {
    if (Trouble overlap = CheckOverlap(job, rank, *tensor); overlap) return overlap;
  }
  gradients.Post(rank, *tensor, record.commit, awaits, now, job.DeadlineOf(timeout_ms, now));
  if (!awaits) Ready(job, rank, *tensor, record, now);
  return {};
}

PlanFlow::Trouble PlanFlow::CheckOverlap(Job& job, std::uint32_t rank, std::uint32_t tensor) {
  Trouble overlap = FindOverlap(job, rank, tensor);
  if (overlap) ++board_.counters.records_refused;
  return overlap;
}

PlanFlow::Trouble PlanFlow::MarkReady(Job& job, std::uint32_t rank, ipc::GradientRecord record,
                                      TimeNs now) {
  const std::uint32_t tensor = record.tensor - job.member(rank).session->gradients()->first.value;
  if (Trouble overlap = CheckOverlap(job, rank, tensor); overlap) return overlap;
  job.gradients->MarkReady(rank, tensor, now);
  // When the host posted it says nothing of when the GPU had it.
  record.posted_ns = static_cast<std::uint64_t>(now);
  Ready(job, rank, tensor, record, now);
  return {};
}

void PlanFlow::Ready(Job& job, std::uint32_t rank, std::uint32_t tensor,
                     const ipc::GradientRecord& record, TimeNs now) {
  recorder_.PostGradient(job, rank, tensor, record, now);
  if (job.times) {
    job.times->Post(PlaceOf(job, rank), tensor, job.gradients->IterationOf(tensor), record);
  }
  Advance(job, now);
}

void PlanFlow::Advance(Job& job, TimeNs now) {
  Gradients& gradients = *job.gradients;
  if (!job.formed() || job.gradients_failure) return;
  while (true) {
    const WirePlan* const before = gradients.plan();
    const WireBlock* const head = gradients.Head();
    if (gradients.plan() != before) {
      const std::uint32_t most = gradients.plan()->plan->in_flight_max;
      blocks_.SetPlannedInFlightMax(job.id(), std::max(most, 1U));
      TakeBlockRows(job);
      ShowPlan(job);
    }
    if (gradients.head_index() == 0) {
      steersman_.AtBorder(job, Steersman::NextOperation(job), now);
      if (job.paused || !job.steering.MayBeginIteration(gradients.head_iteration())) break;
    }
    if (gradients.head_index() == 0 && job.hold.until_ns > now) {
      next_release_ = std::min(next_release_, job.hold.until_ns);
      const bool could = head != nullptr && !gradients.Missing(job.local_ranks());
      if (could && job.hold.since_ns == 0) job.hold.since_ns = now;
      break;
    }
    if (head == nullptr || gradients.Missing(job.local_ranks()) || !blocks_.HasRoom(job)) break;
    Operation* const operation = gradients.Begin();
    if (operation == nullptr) break;
    operation->first_rank = job.local().front();
    operation->posted = job.local_ranks();
    operation->shape.device = job.DeviceOf(*operation, operation->first_rank);
    operation->opened_ns = now;
    operation->since_ns = now;
    operation->board_row = board_.TakeQueueRow();
    if (operation->index == 0) {
      job.times->ResizeBlocks(operation->iteration, operation->plan->blocks.size());
    }
    job.times->block(operation->iteration, operation->index).ready_ns = now;
    blocks_.Begin(job, *operation, now);
  }
  ShowHead(job, now);
}

void PlanFlow::RefuseBeyond(Job& job, std::uint64_t last, const Failure& failure) {
  if (job.gradients_failure) return;
  Gradients& gradients = *job.gradients;
  for (std::uint32_t tensor = 0; tensor < gradients.count(); ++tensor) {
    if (gradients.posted(tensor) == 0 || gradients.IterationOf(tensor) <= last) continue;
    TellRanks(job, tensor, &failure);
    gradients.Refuse(tensor);
  }
}

void PlanFlow::SetHold(Job& job, const Hold& hold, TimeNs now) {
  job.hold = hold;
  if (job.gradients) Advance(job, now);
}

void PlanFlow::Release(const std::vector<std::unique_ptr<Job>>& jobs, TimeNs now) {
  next_release_ = kNever;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->hold.until_ns == 0 || !job->gradients) continue;
    if (job->hold.until_ns <= now) {
      const bool held =
          job->hold.reason == ipc::WaitReason::kInterleaved && job->hold.since_ns != 0;
      if (held) job->sums.held_ns += now - job->hold.since_ns;
      job->hold = {};
    }
    Advance(*job, now);
  }
}

void PlanFlow::End(Job& job, Operation& operation, TimeNs now) {
  Gradients& gradients = *job.gradients;
  job.times->block(operation.iteration, operation.index).end_ns = now;
  const Gradients::Ended ended = gradients.End(operation);
  for (const std::uint32_t tensor : ended.gradients) {
    TellRanks(job, tensor, nullptr);
    gradients.Close(tensor);
  }
  const std::uint64_t iteration = operation.iteration;
  recorder_.OperationEnded(job, operation, now);
  board_.FreeQueueRow(operation.board_row);
  gradients.Free(operation);
  ++job.operations_ended;
  ++board_.counters.operations_ended;
  job.dirty = true;
  if (ended.iteration) EndIteration(job, iteration);
  Advance(job, now);
}

void PlanFlow::EndIteration(Job& job, std::uint64_t iteration) {
  job.times->EndIteration(iteration);
  const bool first = iteration == kFirstTimes || iteration == kSecondTimes;
  if (first || iteration % IterationTimes::kWindow == 0) {
    // Peers that is that far behind has the last ones.
    peers_.TrySend(TimesSeen{job.id(),
                             job.times->Median(first ? kFirstTimes : IterationTimes::kWindow),
                             blocks_.CostsOf(job)});
  }
  if (iteration > 2 * kShownEvery && iteration % kShownEvery != 0) return;
  ShowPlan(job);
  ShowBlocks(job, iteration);
}

void PlanFlow::TellRanks(Job& job, std::uint32_t tensor, const Failure* failure) {
  for (RankMask left = job.gradients->posted(tensor); left != 0; left &= left - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(left));
    TellRank(job, board_, rank, job.gradients->RecordOf(rank, tensor), failure);
  }
}

void PlanFlow::Fail(Job& job, const Failure& failure, TimeNs now) {
  if (!job.gradients || job.gradients_failure) return;
  job.gradients_failure = failure;
  recorder_.HeadFailed(job, failure, now);
  for (Operation& operation : job.gradients->operations()) {
    if (!operation.open()) continue;
    operation.failure = failure;
    operation.since_ns = now;
    blocks_.Abandon(job, operation, now);
    if (operation.moved()) EndFailed(job, operation, now);
  }
  ShowHead(job, now);
  if (job.gradients->operations_open() == 0) TellFailed(job);
}

void PlanFlow::EndFailed(Job& job, Operation& operation, TimeNs now) {
  recorder_.OperationEnded(job, operation, now);
  board_.FreeQueueRow(operation.board_row);
  job.gradients->Free(operation);
  ++job.operations_failed;
  ++board_.counters.operations_failed;
  job.dirty = true;
  if (job.gradients->operations_open() == 0) TellFailed(job);
}

void PlanFlow::TellFailed(Job& job) {
  for (std::uint32_t tensor = 0; tensor < job.gradients->count(); ++tensor) {
    if (job.gradients->posted(tensor) == 0) continue;
    Failure failure = *job.gradients_failure;
    const std::string open = job.DescribeGradient(tensor);
    // What began with this very gradient names it already.
    if (!failure.text.starts_with(open)) failure.text += fmt::format("; {} was open", open);
    TellRanks(job, tensor, &failure);
    job.gradients->Close(tensor);
  }
}

PlanFlow::Trouble PlanFlow::Expire(Job& job, TimeNs now, TimeNs& next_deadline) const {
  if (!job.gradients || !job.gradients->AnyOpen() || job.gradients_failure) return {};
  Gradients& gradients = *job.gradients;
  for (std::uint32_t tensor = 0; tensor < gradients.count(); ++tensor) {
    if (gradients.deadline_ns(tensor) > now) {
      next_deadline = std::min(next_deadline, gradients.deadline_ns(tensor));
      continue;
    }
    const std::string what = fmt::format("{} timed out after {} ms", job.DescribeGradient(tensor),
                                         (now - gradients.opened_ns(tensor)) / kMillisecond);
    if (!job.formed()) return Failure{Code::kTimeout, fmt::format("{}: {}", what, job.waits_for)};
    if (gradients.Head() == nullptr) {
      return Failure{Code::kTimeout, fmt::format("{}: {}", what, WhyNoPlan(job))};
    }
    for (const Operation& operation : gradients.operations()) {
      if (!operation.open()) continue;
      return Failure{Code::kTimeout,
                     fmt::format("{}: {} is on lane {}", what, job.DescribeOperation(operation),
                                 blocks_.LaneName(blocks_.LaneWaitedFor(job, operation)))};
    }
    const std::uint32_t missing = gradients.Missing(job.local_ranks()).value_or(tensor);
    return Failure{Code::kTimeout, fmt::format("{}: {} {}", what,
                                               job.DescribeMissing(gradients.posted(missing),
                                                                   gradients.ready(missing)),
                                               job.DescribeGradient(missing))};
  }
  return {};
}

bool PlanFlow::IsBeyond(const Job& job, std::uint64_t last) {
  if (!job.gradients || !job.gradients->AnyOpen()) return false;
  for (std::uint32_t tensor = 0; tensor < job.gradients->count(); ++tensor) {
    if (job.gradients->posted(tensor) != 0 && job.gradients->IterationOf(tensor) > last)
      return true;
  }
  return false;
}

}  // namespace headrace::service
