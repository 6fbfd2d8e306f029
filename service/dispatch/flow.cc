#include "service/dispatch/flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/cut.h"
#include "service/dispatch/overlap.h"
#include "service/dispatch/rows.h"

namespace headrace::service {
namespace {

constexpr std::uint32_t kEventsPerJobMax = 64;
constexpr RankMask Bit(std::uint32_t rank) { return RankMask{1} << rank; }

// The gradient of a record that was checked.
std::uint32_t TensorOf(Job& job, std::uint32_t rank, const ipc::GradientRecord& record) {
  return record.tensor - job.member(rank).session->gradients()->first.value;
}

// What one service can do and several cannot.
Status CheckBetweenNodes(const Posted& posted, const Job& job) {
  const bool real = posted.dtype == DType::kFloat32 || posted.dtype == DType::kFloat64 ||
                    posted.dtype == DType::kFloat16 || posted.dtype == DType::kBFloat16;
  if (!job.spans_nodes() || !Reduces(posted.kind) || posted.reduction != Reduction::kAverage ||
      real) {
    return {};
  }
  return Error(Code::kInvalidArgument,
               fmt::format("averages of {} are not carried out between nodes, where their sums "
                           "would not fit: post a sum and divide it",
                           Name(posted.dtype)));
}

}  // namespace

Flow::Flow(std::vector<LanePort> lanes, BoardWriter& board, Outgoing<PeersMessage>& peers,
           Outgoing<WatchMessage>& watch, Outgoing<MappingMessage>& mapping)
    : board_(board),
      recorder_(board),
      blocks_(std::move(lanes), board, recorder_, mapping),
      steersman_(blocks_, watch),
      plans_(blocks_, board, recorder_, steersman_, peers),
      late_(blocks_, board, peers, watch),
      peers_(peers),
      watch_(watch) {}

void Flow::Post(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now) {
  ++board_.counters.records_read;
  job.member(rank).posted = record.commit;
  ++job.use->posts;
  job.dirty = true;
  // Whatever else flags say, it is an operation, so that the count of operations stays the same on
  // every rank.
  if ((record.flags & ~ipc::kRecordAwaitsWord) == ipc::kRecordIsGradient) {
    return PostGradient(job, rank, std::bit_cast<ipc::GradientRecord>(record), now);
  }
  PostOperation(job, rank, record, now);
  if (job.draining) FinishJobDrain(job, now);
}

void Flow::PostOperation(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now) {
  Member& member = job.member(rank);
  const std::uint64_t sequence = ++member.operations;
  Operation& operation = job.slot(sequence);
  const bool found = operation.state != Operation::State::kFree;
  if (found && operation.shape.sequence != sequence) {
    const Failure behind = job.failure ? *job.failure : TooFarAhead(job, operation);
    return TellRank(job, board_, rank, record.commit, &behind);
  }
  job.record(sequence, rank) = record.commit;
  if ((record.flags & ipc::kRecordAwaitsWord) == 0) recorder_.Post(job, sequence, rank, now);
  if (!found) {
    if (job.failure) return TellRank(job, board_, rank, record.commit, &*job.failure);
    if (refusing_) {
      const Failure refused{Code::kUnavailable, "the service is shutting down"};
      if (job.spans_nodes()) FailJob(job, refused, Found::kHere, now);
      return TellRank(job, board_, rank, record.commit, &refused);
    }
    const bool trains =
        job.gradients && (job.gradients->AnyOpen() || job.gradients->head_index() != 0);
    if (!trains) steersman_.AtBorder(job, sequence, now);
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
  if (operation.state == Operation::State::kTombstone) return End(job, operation, now);
  if (std::optional<Failure> over = OverQuota(job); over) {
    ++board_.counters.quota_refusals;
    return Fail(job, operation, std::move(*over), now);
  }

  Result<Posted> posted = CheckRecord(record, *member.session);
  if (!posted) {
    ++board_.counters.records_refused;
    return Fail(job, operation,
                {posted.error().code(),
                 fmt::format("{} posted a record that cannot be carried out as operation {}: {}",
                             job.DescribeRank(rank), sequence, posted.error().text())},
                now);
  }
  posted->sequence = sequence;
  Join(job, operation, rank, *posted, record, now);
}

void Flow::PostGradient(Job& job, std::uint32_t rank, const ipc::GradientRecord& record,
                        TimeNs now) {
  PlanFlow::Trouble trouble = OverQuota(job);
  if (trouble) {
    ++board_.counters.quota_refusals;
  } else {
    trouble = plans_.Post(job, rank, record, refusing_, now);
  }
  if (!trouble) {
    const bool awaits = (record.flags & ipc::kRecordAwaitsWord) != 0;
    if (awaits && job.gradients->IsAwaited(rank, TensorOf(job, rank, record), record.commit)) {
      Await(job, rank, std::bit_cast<ipc::Record>(record), 0);
    }
    if (job.gradients->AnyOpen()) {
      [[maybe_unused]] const auto none = plans_.Expire(job, 0, next_deadline_);
    }
    return;
  }
  TellRank(job, board_, rank, record.commit, &*trouble);
  FailGradients(job, *trouble, now);
}

void Flow::FailGradients(Job& job, const Failure& failure, TimeNs now) {
  if (job.spans_nodes()) return FailJob(job, failure, Found::kHere, now);
  if (!job.failure && !job.gradients_failure) Tell(job, failure.code, failure.text);
  plans_.Fail(job, failure, now);
}

void Flow::SetLayout(Job& job, Session& session, const struct SetLayout& message, TimeNs now) {
  if (const auto trouble = plans_.SetLayout(job, session, message); trouble) {
    FailGradients(job, *trouble, now);
  }
}

void Flow::OfferPlan(Job& job, const struct OfferPlan& message, TimeNs now) {
  plans_.Offer(job, message, now);
}

void Flow::SwitchPlan(Job& job, const struct SwitchPlan& message, TimeNs now) {
  if (const auto trouble = plans_.Switch(job, message, now); trouble) {
    FailGradients(job, *trouble, now);
  }
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
    if (other != rank && job.member(other).operations >= sequence) operation.told |= Bit(other);
  }
  operation.posted = operation.told;
}

Failure Flow::TooFarAhead(Job& job, const Operation& earlier) const {
  const std::string what = job.DescribeOperation(earlier);
  if (job.formed() && earlier.posted == job.local_ranks()) {
    // Only a client that does not wait for room in its ring comes here.
    return {Code::kExhausted, fmt::format("posted {} operations ahead, while {} has not ended",
                                          kOperationsMax, what)};
  }
  return {Code::kExhausted,
          fmt::format("{} is {} operations behind: {} still waits for it",
                      job.DescribeRank(job.FirstMissing(earlier)), kOperationsMax, what)};
}

void Flow::Join(Job& job, Operation& operation, std::uint32_t rank, const Posted& posted,
                const ipc::Record& record, TimeNs now) {
  if (operation.first_rank == rank) operation.shape = posted;
  if (!operation.shape.Matches(posted)) {
    return Fail(job, operation, {Code::kMismatch, job.DescribeMismatch(operation, rank, posted)},
                now);
  }
  job.memory(posted.sequence, rank) = posted.data;
  job.device(posted.sequence, rank) = posted.device;
  const bool awaits = (record.flags & ipc::kRecordAwaitsWord) != 0;
  // Until its word is there it counts as not posted: a stream may have what comes before to wait
  // for.
  if (!awaits && !UseMemory(job, operation, rank, posted, now)) return;
  if (awaits) operation.awaited |= Bit(rank);
  if (!awaits) recorder_.Take(job, operation, rank, posted.Bytes(), now);
  operation.deadline_ns = std::min(operation.deadline_ns, job.DeadlineOf(posted.timeout_ms, now));
  next_deadline_ = std::min(next_deadline_, operation.deadline_ns);
  if (job.steering.drain.agreed && posted.sequence > job.steering.drain.operations) {
    return Refuse(job, operation, DrainedFailure(job), now);
  }
  if (posted.sequence > job.last_possible) {
    return Fail(job, operation, {Code::kPeerLost, job.left_cause}, now);
  }
  if (Status status = CheckBetweenNodes(posted, job); !status) {
    return Fail(job, operation,
                {status.error().code(),
                 fmt::format("{} posted what cannot be carried out as operation {}: {}",
                             job.DescribeRank(rank), posted.sequence, status.error().text())},
                now);
  }
  if (awaits) Await(job, rank, record, posted.sequence);
  if (IsReady(job, operation)) {
    MakeReady(job, operation, now);
  } else {
    ShowGathering(job, operation);
  }
}

bool Flow::UseMemory(Job& job, Operation& operation, std::uint32_t rank, const Posted& posted,
                     TimeNs now) {
  if (std::optional<Failure> overlap = FindOverlap(job, rank, posted); overlap) {
    ++board_.counters.records_refused;
    Fail(job, operation, std::move(*overlap), now);
    return false;
  }
  if (posted.Bytes() == 0) return true;
  job.member(rank).open.Open(RangeOf(posted, rank));
  operation.in_use |= Bit(rank);
  return true;
}

void Flow::MakeReady(Job& job, Operation& operation, TimeNs now) {
  // A barrier, or nothing to move.
  if (operation.shape.count == 0 && job.nodes() == nullptr) return End(job, operation, now);
  const std::uint64_t block_bytes = job.nodes() == nullptr ? 0 : job.nodes()->block_bytes;
  if (BlocksCount(operation.shape, job.world_size(), block_bytes) > kBlocksPerOperationMax) {
    return Fail(
        job, operation,
        {Code::kExhausted,
         fmt::format("{} is more than {} blocks of {} bytes: configure larger blocks",
                     job.DescribeOperation(operation), kBlocksPerOperationMax, block_bytes)},
        now);
  }
  blocks_.Begin(job, operation, now);
}

void Flow::Form(Job& job, JobNodes nodes, TimeNs now) {
  if (const Status status = job.Form(std::move(nodes)); !status) {
    const Error error = status.error().Within("what its nodes have agreed on");
    return FailJob(job, {error.code(), error.text()}, Found::kHere, now);
  }
  recorder_.Form(job);
  if (job.nodes() != nullptr) {
    blocks_.TakeCosts(job.nodes()->costs);
    Tell(job, Code::kOk, job.DescribeNodes());
  }
  // People may have steered it before its lanes knew it.
  if (job.nodes() != nullptr && job.share != schedule::JobShare{}) blocks_.SetShare(job, now);
  BeginHeldBack(job, now);
}

void Flow::StageEnded(Job& job, const transport::Completion& completion, TimeNs now) {
  Blocks::Ended ended = blocks_.StageEnded(job, completion, now);
  Operation& operation = ended.operation;
  // One that peers have no room for is not compared.
  if (ended.hash && job.nodes() != nullptr) peers_.TrySend(BlockHashed{job.id(), *ended.hash});
  if (!operation.planned()) {
    if (ended.failure) return Fail(job, operation, std::move(*ended.failure), now);
    if (operation.moved()) End(job, operation, now);
    if (job.draining) FinishJobDrain(job, now);
    return;
  }
  if (ended.failure) FailGradients(job, *ended.failure, now);
  if (!operation.open() || !operation.moved()) return;
  if (operation.failure) {
    plans_.EndFailed(job, operation, now);
  } else {
    plans_.End(job, operation, now);
  }
  if (job.draining) FinishJobDrain(job, now);
}

void Flow::Fail(Job& job, Operation& operation, Failure failure, TimeNs now) {
  if (job.spans_nodes()) return FailJob(job, std::move(failure), Found::kHere, now);
  FailAlone(job, operation, std::move(failure), now);
}

void Flow::FailAlone(Job& job, Operation& operation, Failure failure, TimeNs now) {
  // An operation that is already failing keeps its first cause.
  if (operation.failure) return;
  if (!job.failure) Tell(job, failure.code, failure.text);
  Refuse(job, operation, std::move(failure), now);
}

void Flow::Refuse(Job& job, Operation& operation, Failure failure, TimeNs now) {
  if (operation.failure) return;
  operation.failure = std::move(failure);
  operation.since_ns = now;
  blocks_.Abandon(job, operation, now);
  if (operation.moved()) End(job, operation, now);
}

void Flow::FailJob(Job& job, Failure failure, Found found, TimeNs now) {
  if (!job.failed) {
    Tell(job, failure.code, failure.text);
    if (found == Found::kHere && job.spans_nodes()) {
      // Once in a job's life.
      peers_.Send(JobBroken{job.id(), failure.code, failure.text});
    }
    job.failure = failure;
    job.failed = true;
    job.dirty = true;
  }
  FailOpen(job, Which::kAll, 0, *job.failure, now);
  plans_.Fail(job, *job.failure, now);
}

void Flow::LimitTo(Job& job, std::uint64_t last, std::uint64_t last_iteration,
                   const std::string& cause, TimeNs now) {
  if (last >= job.last_possible && last_iteration >= job.last_iteration) return;
  job.last_possible = std::min(job.last_possible, last);
  job.last_iteration = std::min(job.last_iteration, last_iteration);
  job.left_cause = fmt::format("{} after operation {}", cause, last);
  if (job.gradients) job.left_cause += fmt::format(" and iteration {}", last_iteration);
  const bool beyond = std::ranges::any_of(job.operations(), [last](const Operation& operation) {
    return operation.open() && operation.shape.sequence > last;
  });
  if (beyond || PlanFlow::IsBeyond(job, last_iteration))
    FailJob(job, {Code::kPeerLost, job.left_cause}, Found::kHere, now);
}

void Flow::LimitGradients(Job& job, std::uint64_t last_iteration, const Failure& failure,
                          TimeNs now) {
  if (!job.gradients || last_iteration >= job.last_iteration) return;
  job.last_iteration = last_iteration;
  job.left_cause = failure.text;
  if (PlanFlow::IsBeyond(job, last_iteration)) plans_.Fail(job, failure, now);
}

void Flow::End(Job& job, Operation& operation, TimeNs now) {
  const Failure* failure = operation.failure ? &*operation.failure : nullptr;
  for (RankMask left = operation.posted & ~operation.told; left != 0; left &= left - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(left));
    TellRank(job, board_, rank, job.record(operation.shape.sequence, rank), failure);
  }
  operation.told = operation.posted;
  for (RankMask left = std::exchange(operation.in_use, 0); left != 0; left &= left - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(left));
    Posted posted = operation.shape;
    posted.data = job.memory(posted.sequence, rank);
    job.member(rank).open.Close(RangeOf(posted, rank));
  }
  if (operation.open()) {
    --job.operations_open;
    ++job.operations_ended;
    ++board_.counters.operations_ended;
    if (failure != nullptr) {
      ++job.operations_failed;
      ++board_.counters.operations_failed;
    }
    recorder_.OperationEnded(job, operation, now);
    board_.FreeQueueRow(operation.board_row);
    operation.board_row = kNoRow;
  }
  job.dirty = true;
  operation.state =
      operation.told == job.local_ranks() ? Operation::State::kFree : Operation::State::kTombstone;
}

void Flow::FailOpen(Job& job, Which which, std::uint32_t rank, const Failure& failure, TimeNs now) {
  for (Operation& operation : job.operations()) {
    if (!operation.open()) continue;
    if (which == Which::kNotPostedBy && (operation.posted & Bit(rank)) != 0) continue;
    Failure with_operation = failure;
    const std::string open = job.DescribeOperation(operation);
    // What began with this very operation names it already.
    if (!failure.text.starts_with(open)) with_operation.text += fmt::format("; {} was open", open);
    FailAlone(job, operation, std::move(with_operation), now);
  }
}

void Flow::Expire(Jobs& jobs, TimeNs now) {
  if (now >= plans_.next_release()) plans_.Release(jobs, now);
  if (now < next_deadline_) return;
  next_deadline_ = kNever;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->steering.frozen_since_ns != 0) continue;
    for (Operation& operation : job->operations()) {
      if (!operation.open() || operation.failure) continue;
      if (operation.deadline_ns > now) {
        next_deadline_ = std::min(next_deadline_, operation.deadline_ns);
        continue;
      }
      Fail(*job, operation, Expired(*job, operation, now), now);
    }
    if (const auto late = plans_.Expire(*job, now, next_deadline_); late) {
      FailGradients(*job, *late, now);
    }
  }
}

Failure Flow::Expired(Job& job, const Operation& operation, TimeNs now) const {
  const std::string what = fmt::format("{} timed out after {} ms", job.DescribeOperation(operation),
                                       (now - operation.opened_ns) / kMillisecond);
  if (!job.formed()) return {Code::kTimeout, fmt::format("{}: {}", what, job.waits_for)};
  if (operation.state != Operation::State::kGathering) {
    return {Code::kTimeout, fmt::format("{} on lane {}", what,
                                        blocks_.LaneName(blocks_.LaneWaitedFor(job, operation)))};
  }
  if (operation.ready() == job.local_ranks()) {
    return {
        Code::kTimeout,
        fmt::format("{}: not all nodes of the job have said how far they are, so that it can be "
                    "drained",
                    what)};
  }
  if (job.FirstAwaited(operation.posted, operation.ready())) {
    return {Code::kTimeout, fmt::format("{}: {} it", what,
                                        job.DescribeMissing(operation.posted, operation.ready()))};
  }
  const std::uint32_t missing = job.FirstMissing(operation);
  return {Code::kTimeout, fmt::format("{}: {} has not posted it{}", what, job.DescribeRank(missing),
                                      job.member(missing).session ? "" : " and is not attached")};
}

void Flow::ShowGatheringAgain(Job& job) {
  for (Operation& operation : job.operations()) {
    if (operation.state == Operation::State::kGathering) ShowGathering(job, operation);
  }
}

void Flow::ShowGathering(Job& job, Operation& operation) {
  if (!job.formed() && operation.posted == job.attached_ranks()) {
    return blocks_.SetReason(job, operation, ipc::WaitReason::kNodesNotReady, 0);
  }
  if (const auto awaited = job.FirstAwaited(operation.posted, operation.ready()); awaited) {
    return blocks_.SetReason(job, operation, ipc::WaitReason::kGpuNotReady, *awaited);
  }
  if (job.formed() && operation.posted == job.local_ranks()) {
    const bool paused = operation.shape.sequence > job.steering.paused_after;
    return blocks_.SetReason(job, operation,
                             paused ? ipc::WaitReason::kPaused : ipc::WaitReason::kNodesNotReady,
                             paused ? job.paused_by : 0);
  }
  const std::uint32_t missing = job.FirstMissing(operation);
  const auto reason = job.member(missing).session ? ipc::WaitReason::kRankNotReady
                                                  : ipc::WaitReason::kRankNotAttached;
  blocks_.SetReason(job, operation, reason, missing);
}

std::optional<Failure> Flow::OverQuota(const Job& job) const {
  if (posts_per_uid_ == 0 || job.use->posts <= posts_per_uid_) return {};
  return Failure{
      Code::kExhausted,
      fmt::format("uid {} has {} operations and gradients open on this node, which is all it may "
                  "(operations_per_uid = {}): wait for some to end before posting more, or have "
                  "operations_per_uid raised",
                  job.use->uid, posts_per_uid_, posts_per_uid_)};
}

UidUse& Flow::FindUse(std::uint32_t uid) {
  for (const std::unique_ptr<UidUse>& use : uses_) {
    if (use->uid == uid) return *use;
  }
  uses_.push_back(std::make_unique<UidUse>(UidUse{.uid = uid}));
  return *uses_.back();
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
  watch_.TrySend(Event{code, job.id(), std::move(text),
                       job.use == nullptr ? std::nullopt : std::optional(job.use->uid)});
}

}  // namespace headrace::service
