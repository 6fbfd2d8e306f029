#include "service/dispatch/flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/rows.h"

namespace headrace::service {
namespace {

constexpr std::uint32_t kEventsPerJobMax = 64;
constexpr RankMask Bit(std::uint32_t rank) { return RankMask{1} << rank; }

std::vector<std::uint64_t> Credits(const std::vector<LanePort>& lanes) {
  std::vector<std::uint64_t> credits;
  for (const LanePort& lane : lanes) credits.push_back(lane.credit_bytes);
  return credits;
}

}  // namespace

Flow::Flow(std::vector<LanePort> lanes, BoardWriter& board, Door<WatchMessage>& watch)
    : queue_(Credits(lanes)), board_(board), watch_(watch) {
  for (LanePort& port : lanes) {
    LaneState lane{.port = std::move(port)};
    lane.row.in_use = 1;
    lane.row.threads = lane.port.threads;
    lane.row.credit_bytes = lane.port.credit_bytes;
    ipc::SetText(lane.row.name, lane.port.name);
    ipc::SetText(lane.row.transport, lane.port.transport);
    lanes_.push_back(std::move(lane));
    ShowLane(static_cast<std::uint8_t>(lanes_.size() - 1));
  }
}

std::uint64_t Flow::Token(const Job& job, std::uint64_t sequence) {
  static_assert(kOperationsMax <= 1 << 16);
  return std::uint64_t{job.id().value} << 16 | sequence % kOperationsMax;
}

void Flow::Post(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now) {
  ++board_.counters.records_read;
  const std::uint64_t sequence = record.commit;
  Member& member = job.member(rank);
  member.posted = sequence;
  job.dirty = true;
  Operation& operation = job.slot(sequence);
  const bool found = operation.state != Operation::State::kFree;
  if (found && operation.shape.sequence != sequence) {
    const Failure behind = job.failure ? *job.failure : TooFarAhead(job, operation);
    return TellRank(job, rank, sequence, &behind);
  }
  if (!found) {
    if (job.failure) return TellRank(job, rank, sequence, &*job.failure);
    if (refusing_) {
      const Failure refused{Code::kUnavailable, "the service is shutting down"};
      return TellRank(job, rank, sequence, &refused);
    }
    Open(job, operation, rank, sequence, now);
    if (operation.told != 0) {
      const auto refused = static_cast<std::uint32_t>(std::countr_zero(operation.told));
      operation.posted |= Bit(rank);
      return Fail(job, operation,
                  {Code::kExhausted,
                   fmt::format("{} was {} operations ahead, so that its operation {} was refused",
                               job.DescribeRank(refused), kOperationsMax, sequence)},
                  now);
    }
  }
  operation.posted |= Bit(rank);
  if (operation.state == Operation::State::kTombstone) return End(job, operation);

  Result<Posted> posted = CheckRecord(record, *member.session);
  if (!posted) {
    ++board_.counters.records_refused;
    return Fail(job, operation,
                {posted.error().code(),
                 fmt::format("{} posted a record that cannot be carried out as operation {}: {}",
                             job.DescribeRank(rank), sequence, posted.error().text())},
                now);
  }
  Join(job, operation, rank, *posted, now);
}

void Flow::Open(Job& job, Operation& operation, std::uint32_t rank, std::uint64_t sequence,
                TimeNs now) {
  operation = Operation{};
  operation.state = Operation::State::kGathering;
  operation.shape.sequence = sequence;
  operation.first_rank = rank;
  operation.opened_ns = now;
  operation.since_ns = now;
  operation.board_row = board_.TakeQueueRow();
  ++job.operations_open;
  // Ranks that are past it already were told then that they are too far ahead.
  for (std::uint32_t other = 0; other < job.world_size(); ++other) {
    if (other != rank && job.member(other).posted >= sequence) operation.told |= Bit(other);
  }
  operation.posted = operation.told;
}

Failure Flow::TooFarAhead(Job& job, const Operation& earlier) const {
  const std::string what = job.DescribeOperation(earlier);
  if (earlier.posted == job.all_ranks()) {
    // Only a client that does not wait for room in its ring comes here.
    return {Code::kExhausted, fmt::format("posted {} operations ahead, while {} has not ended",
                                          kOperationsMax, what)};
  }
  return {Code::kExhausted,
          fmt::format("{} is {} operations behind: {} still waits for it",
                      job.DescribeRank(job.FirstMissing(earlier)), kOperationsMax, what)};
}

void Flow::Join(Job& job, Operation& operation, std::uint32_t rank, const Posted& posted,
                TimeNs now) {
  if (operation.first_rank == rank) operation.shape = posted;
  if (!operation.shape.Matches(posted)) {
    return Fail(job, operation, {Code::kMismatch, job.DescribeMismatch(operation, rank, posted)},
                now);
  }
  job.memory(posted.sequence, rank) = posted.data;
  operation.deadline_ns =
      std::min(operation.deadline_ns, now + TimeNs{posted.timeout_ms} * kMillisecond);
  next_deadline_ = std::min(next_deadline_, operation.deadline_ns);
  if (operation.posted == job.all_ranks()) {
    MakeReady(job, operation, now);
  } else {
    ShowGathering(job, operation);
  }
}

void Flow::MakeReady(Job& job, Operation& operation, TimeNs now) {
  if (operation.shape.count == 0) return End(job, operation);  // a barrier, or nothing to move
  operation.state = Operation::State::kWaiting;
  operation.since_ns = now;
  operation.stage = {.token = Token(job, operation.shape.sequence),
                     .position = operation.shape.sequence,
                     .job = job.id(),
                     .lane = 0,
                     .bytes = operation.shape.Bytes()};
  const schedule::Wait wait = queue_.Push(operation.stage);
  lanes_[operation.stage.lane].queue_changed = true;
  const bool behind = wait.reason == schedule::Wait::Reason::kBehindStage;
  SetReason(job, operation, behind ? ipc::WaitReason::kBehindBlock : ipc::WaitReason::kNone,
            wait.argument);
}

void Flow::Schedule(Jobs& jobs, TimeNs now) {
  for (std::uint8_t lane = 0; lane < lanes_.size(); ++lane) {
    bool changed = std::exchange(lanes_[lane].queue_changed, false);
    while (const std::optional<schedule::Stage> stage = queue_.Pick(lane)) {
      const auto job = std::find_if(jobs.begin(), jobs.end(), [&stage](const auto& entry) {
        return entry->id() == stage->job;
      });
      HR_CHECK(job != jobs.end(), stage->job.value);
      Start(**job, (*job)->slot(stage->position), now);
      changed = true;
    }
    if (!changed) continue;
    ExplainHeads(jobs, lane);
    ShowLane(lane);
  }
}

void Flow::Start(Job& job, Operation& operation, TimeNs now) {
  LaneState& lane = lanes_[operation.stage.lane];
  if (lane.row.in_flight_stages++ == 0) lane.busy_since = now;
  lane.row.in_flight_bytes += operation.stage.bytes;
  operation.state = Operation::State::kMoving;
  operation.since_ns = now;
  SetReason(job, operation, ipc::WaitReason::kNone, 0);
  // Credits bound what is in flight to far less than a lane's inbox holds.
  const bool sent = lane.port.door->Send(StartStage{job.MakeTransfer(operation)});
  HR_CHECK(sent, lane.port.name);
}

void Flow::StageEnded(Job& job, const transport::Completion& completion, TimeNs now) {
  Operation& operation = job.operations()[completion.token % (1U << 16)];
  HR_CHECK(operation.state == Operation::State::kMoving, completion.token);
  queue_.Return(operation.stage);
  LaneState& lane = lanes_[operation.stage.lane];
  lane.row.in_flight_bytes -= operation.stage.bytes;
  if (--lane.row.in_flight_stages == 0) lane.row.busy_ns += now - lane.busy_since;
  ++lane.row.stages_ended;
  if (completion.code == Code::kOk) {
    lane.row.bytes_moved += operation.stage.bytes;
    lane.row.last_bytes = operation.stage.bytes;
    lane.row.last_ns = completion.end_ns - completion.begin_ns;
    job.bytes_moved += operation.stage.bytes;
    board_.counters.bytes_moved += operation.stage.bytes;
  } else if (!operation.failure) {
    operation.failure = Failure{
        completion.code, fmt::format("lane {} could not move {}: {}", lane.port.name,
                                     job.DescribeOperation(operation), CodeName(completion.code))};
    Tell(job, completion.code, operation.failure->text);
  }
  ShowLane(operation.stage.lane);
  End(job, operation);
}

void Flow::Fail(Job& job, Operation& operation, Failure failure, TimeNs now) {
  // An operation that is already failing keeps its first cause.
  if (operation.failure) return;
  const bool moving = operation.state == Operation::State::kMoving;
  if (operation.state == Operation::State::kWaiting) Unqueue(job, operation);
  if (!job.failure) Tell(job, failure.code, failure.text);
  operation.failure = std::move(failure);
  operation.since_ns = now;
  if (!moving) return End(job, operation);
  // The lane may be writing results: the ranks are told when it has let go.
  const bool sent =
      lanes_[operation.stage.lane].port.door->Send(CancelStage{operation.stage.token});
  HR_CHECK(sent, operation.stage.token);
}

void Flow::Unqueue(Job& job, Operation& operation) {
  const bool removed = queue_.Remove(operation.stage);
  HR_CHECK(removed, operation.stage.token);
  lanes_[operation.stage.lane].queue_changed = true;
  const std::uint64_t sequence = operation.shape.sequence;
  for (std::uint64_t later = sequence + 1; later < sequence + kOperationsMax; ++later) {
    Operation& behind = job.slot(later);
    if (behind.state != Operation::State::kWaiting) continue;
    if (behind.reason == ipc::WaitReason::kBehindBlock && behind.reason_argument == sequence) {
      SetReason(job, behind, operation.reason, operation.reason_argument);
    }
    return;
  }
}

void Flow::End(Job& job, Operation& operation) {
  const Failure* failure = operation.failure ? &*operation.failure : nullptr;
  for (RankMask left = operation.posted & ~operation.told; left != 0; left &= left - 1) {
    TellRank(job, static_cast<std::uint32_t>(std::countr_zero(left)), operation.shape.sequence,
             failure);
  }
  operation.told = operation.posted;
  if (operation.open()) {
    --job.operations_open;
    ++job.operations_ended;
    ++board_.counters.operations_ended;
    if (failure != nullptr) {
      ++job.operations_failed;
      ++board_.counters.operations_failed;
    }
    board_.FreeQueueRow(operation.board_row);
    operation.board_row = kNoRow;
  }
  job.dirty = true;
  operation.state =
      operation.told == job.all_ranks() ? Operation::State::kFree : Operation::State::kTombstone;
}

void Flow::TellRank(Job& job, std::uint32_t rank, std::uint64_t sequence, const Failure* failure) {
  Member& member = job.member(rank);
  HR_CHECK(member.session != nullptr, rank, sequence);
  const Code code = failure != nullptr ? failure->code : Code::kOk;
  const std::string_view text = failure != nullptr ? std::string_view(failure->text) : "";
  if (member.session->completions().End(sequence, code, text)) ++board_.counters.wake_calls;
  ++member.ended;
}

void Flow::FailOpen(Job& job, Which which, std::uint32_t rank, const Failure& failure, TimeNs now) {
  for (Operation& operation : job.operations()) {
    if (!operation.open()) continue;
    if (which == Which::kNotPostedBy && (operation.posted & Bit(rank)) != 0) continue;
    Failure with_operation = failure;
    with_operation.text += fmt::format("; {} was open", job.DescribeOperation(operation));
    Fail(job, operation, std::move(with_operation), now);
  }
}

void Flow::Expire(Jobs& jobs, TimeNs now) {
  next_deadline_ = kNever;
  for (const std::unique_ptr<Job>& job : jobs) {
    for (Operation& operation : job->operations()) {
      if (!operation.open() || operation.failure) continue;
      if (operation.deadline_ns > now) {
        next_deadline_ = std::min(next_deadline_, operation.deadline_ns);
        continue;
      }
      const std::string what = job->DescribeOperation(operation);
      const TimeNs age_ms = (now - operation.opened_ns) / kMillisecond;
      const bool gathering = operation.state == Operation::State::kGathering;
      const std::uint32_t missing = gathering ? job->FirstMissing(operation) : 0;
      Fail(*job, operation,
           {Code::kTimeout,
            gathering ? fmt::format("{} timed out after {} ms: {} has not posted it{}", what,
                                    age_ms, job->DescribeRank(missing),
                                    job->member(missing).session ? "" : " and is not attached")
                      : fmt::format("{} timed out after {} ms on lane {}", what, age_ms,
                                    lanes_[operation.stage.lane].port.name)},
           now);
    }
  }
}

void Flow::ExplainHeads(Jobs& jobs, std::uint8_t lane) {
  if (queue_.Waiting(lane) == 0) return;
  for (const std::unique_ptr<Job>& job : jobs) {
    const std::optional<schedule::Stage> head = queue_.Head(job->id(), lane);
    if (!head) continue;
    const schedule::Wait wait = queue_.WhyHeadWaits(job->id(), lane);
    const bool credit = wait.reason == schedule::Wait::Reason::kNoCredit;
    const auto reason = credit ? ipc::WaitReason::kNoCredit : ipc::WaitReason::kBehindJob;
    Operation& operation = job->slot(head->position);
    if (operation.reason == reason && operation.reason_argument == wait.argument) continue;
    SetReason(*job, operation, reason, wait.argument);
  }
}

void Flow::ShowAttached(Job& job) {
  for (Operation& operation : job.operations()) {
    if (operation.state == Operation::State::kGathering) ShowGathering(job, operation);
  }
}

void Flow::SetReason(Job& job, Operation& operation, ipc::WaitReason reason,
                     std::uint64_t argument) {
  operation.reason = reason;
  operation.reason_argument = argument;
  board_.Write(operation.board_row, MakeQueueRow(job, operation));
}

void Flow::ShowGathering(Job& job, Operation& operation) {
  const std::uint32_t missing = job.FirstMissing(operation);
  SetReason(job, operation,
            job.member(missing).session ? ipc::WaitReason::kRankNotReady
                                        : ipc::WaitReason::kRankNotAttached,
            missing);
}

void Flow::ShowLane(std::uint8_t lane) {
  lanes_[lane].row.queued_stages = queue_.Waiting(lane);
  board_.WriteLane(lane, lanes_[lane].row);
}

void Flow::Tell(Job& job, Code code, std::string text) {
  if (job.events_sent > kEventsPerJobMax) return;
  if (++job.events_sent > kEventsPerJobMax) {
    text = fmt::format("job {}: more than {} events; the rest is not shown", job.name(),
                       kEventsPerJobMax);
  } else {
    text = fmt::format("job {}: {}", job.name(), text);
  }
  // A watch that is that far behind has enough to tell.
  [[maybe_unused]] const bool sent = watch_.Send(Event{code, job.id(), std::move(text)});
}

}  // namespace headrace::service
