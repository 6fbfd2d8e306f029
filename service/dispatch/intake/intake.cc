#include "service/dispatch/intake/intake.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/dispatch/blocks/message_blocks.h"
#include "service/dispatch/intake/part_checks.h"
#include "service/dispatch/intake/record_checks.h"
#include "service/dispatch/job/overlap.h"
#include "service/dispatch/job/pair_notices.h"

namespace headrace::service {
namespace {

// The gradient of a record that was checked.
std::uint32_t TensorOf(Job& job, std::uint32_t rank, const ipc::GradientRecord& record) {
  return record.tensor - job.rank_entry(rank).session->gradients()->first.value;
}

std::size_t PlaceOf(const Job& job, std::uint32_t rank) {
  const auto found = std::ranges::lower_bound(job.local(), rank);
  HR_CHECK(found != job.local().end() && *found == rank, rank);
  return static_cast<std::size_t>(found - job.local().begin());
}

// What one service can do and several cannot.
Status CheckBetweenNodes(const OperationSpec& spec, const Job& job) {
  if (job.spans_nodes() && MovesInMessages(spec.kind) && spec.OnGpu()) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("{} of GPUs' memory is not carried out between nodes: send and receive "
                    "it, or post it from memory of the host",
                    Name(spec.kind)));
  }
  const bool real = spec.dtype == DType::kFloat32 || spec.dtype == DType::kFloat64 ||
                    spec.dtype == DType::kFloat16 || spec.dtype == DType::kBFloat16;
  if (!job.spans_nodes() || !Reduces(spec.kind) || spec.reduction != Reduction::kAverage || real) {
    return {};
  }
  return Error(Code::kInvalidArgument,
               fmt::format("averages of {} are not carried out between nodes, where their sums "
                           "would not fit: post a sum and divide it",
                           Name(spec.dtype)));
}

}  // namespace

void Intake::Post(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now) {
  HR_CHECK(rank < job.world_size() && job.rank_entry(rank).session != nullptr, rank);
  HR_CHECK(record.commit == job.rank_entry(rank).posted + 1, rank, record.commit);
  ++board_.counters.records_read;
  job.rank_entry(rank).posted = record.commit;
  ++job.use->posts;
  job.Changed();
  // Whatever else flags say, it is an operation, so that the count of operations stays the same on
  // every rank.
  if ((record.flags & ~ipc::kRecordAwaitsWord) == ipc::kRecordIsGradient) {
    return PostGradient(job, rank, std::bit_cast<ipc::GradientRecord>(record), now);
  }
  if (ipc::IsSendOrReceive(record.kind)) return PostPair(job, rank, record, now);
  PostOperation(job, rank, record, now);
}

void Intake::PostOperation(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now) {
  JobRank& entry = job.rank_entry(rank);
  const std::uint64_t sequence = ++entry.operations;
  HR_CHECK(sequence <= entry.posted, rank, sequence, entry.posted);
  Operation& operation = job.slot(sequence);
  const bool found = operation.state != Operation::State::kFree;
  if (found && operation.spec.sequence != sequence) {
    const Failure behind = job.failure ? *job.failure : TooFarAhead(job, operation);
    return flow_.CompleteRecord(job, rank, record.commit, &behind);
  }
  job.RecordOf(sequence, rank) = record.commit;
  if ((record.flags & ipc::kRecordAwaitsWord) == 0) recorder_.Post(job, sequence, rank, now);
  if (!found && !Open(job, operation, rank, record, now)) return;
  operation.posts.ranks |= Bit(rank);
  if (operation.state == Operation::State::kTombstone) return flow_.End(job, operation, now);
  if (std::optional<Failure> over = OverQuota(job); over) {
    return flow_.FailOperation(job, operation, std::move(*over), now);
  }
  Result<OperationSpec> spec = CheckRecord(record, *entry.session);
  if (spec && spec->has_parts) {
    HR_CHECK(job.world_size() <= rows_.size(), job.world_size(), rows_.size());
    const auto rows = std::span(rows_).first(job.world_size());
    if (Status read = CheckParts(record, *entry.session, *spec, rows); !read) spec = read.error();
  }
  if (!spec) {
    ++board_.counters.records_refused;
    return flow_.FailOperation(
        job, operation,
        {spec.error().code(),
         fmt::format("{} posted a record that cannot be carried out as operation {}: {}",
                     job.DescribeRank(rank), sequence, spec.error().text())},
        now);
  }
  spec->sequence = sequence;
  if ((record.flags & ipc::kRecordFollowsGradients) != 0) {
    HR_CHECK(job.gradients != nullptr, job.id().value, rank);  // with the session's layout
    spec->follows = job.gradients->IterationsOf(rank);
  }
  Join(job, operation, rank, *spec, record, now);
}

std::optional<Failure> Intake::KeepParts(Job& job, const Operation& operation, std::uint32_t rank,
                                         const OperationSpec& spec) {
  const auto rows = std::span(rows_).first(job.world_size());
  job.part_tables().Keep(spec.sequence, rank, rows, spec.result);
  if (IsParted(spec.kind) && !spec.uneven) return std::nullopt;
  return FindPartsMismatch(job, operation, rank);
}

bool Intake::Open(Job& job, Operation& operation, std::uint32_t rank, const ipc::Record& record,
                  TimeNs now) {
  const std::uint64_t sequence = job.rank_entry(rank).operations;
  HR_CHECK(operation.state == Operation::State::kFree, rank, sequence);
  if (job.failure) {
    flow_.CompleteRecord(job, rank, record.commit, &*job.failure);
    return false;
  }
  if (refusing_) {
    const Failure refused{Code::kUnavailable, "the service is shutting down"};
    if (job.spans_nodes()) flow_.FailJob(job, refused, Flow::Found::kHere, now);
    flow_.CompleteRecord(job, rank, record.commit, &refused);
    return false;
  }
  const bool trains =
      job.gradients && (job.gradients->AnyOpen() || job.gradients->head_index() != 0);
  if (!trains) flow_.settings().AtBorder(job, sequence, now);
  operation = Operation{};
  operation.state = Operation::State::kGathering;
  operation.spec.sequence = sequence;
  operation.first_rank = rank;
  operation.posts.opened_ns = now;
  operation.since_ns = now;
  recorder_.ItemOpened(job, operation);
  ++job.open.operations;
  // Ranks that are past it already were refused then, as too far ahead.
  for (std::uint32_t other = 0; other < job.world_size(); ++other) {
    if (other != rank && job.rank_entry(other).operations >= sequence)
      operation.completed |= Bit(other);
  }
  operation.posts.ranks = operation.completed;
  if (operation.completed == 0) return true;
  const auto refused = static_cast<std::uint32_t>(std::countr_zero(operation.completed));
  operation.posts.ranks |= Bit(rank);
  flow_.FailOperation(
      job, operation,
      {Code::kExhausted,
       fmt::format("{} was {} operations ahead, so that its operation {} was refused",
                   job.DescribeRank(refused), kOperationsMax, sequence)},
      now);
  return false;
}

Failure Intake::TooFarAhead(Job& job, const Operation& earlier) {
  const std::string what = job.DescribeOperation(earlier);
  if (job.formed() && earlier.posts.ranks == job.local_ranks()) {
    // Only a client that does not wait for room in its ring comes here.
    return {Code::kExhausted, fmt::format("posted {} operations ahead, while {} has not ended",
                                          kOperationsMax, what)};
  }
  return {Code::kExhausted,
          fmt::format("{} is {} operations behind: {} still waits for it",
                      job.DescribeRank(job.FirstMissing(earlier.posts)), kOperationsMax, what)};
}

void Intake::Join(Job& job, Operation& operation, std::uint32_t rank, const OperationSpec& spec,
                  const ipc::Record& record, TimeNs now) {
  HR_CHECK(operation.open() && operation.posts.Has(rank), operation.spec.sequence, rank);
  HR_CHECK(spec.sequence == operation.spec.sequence, spec.sequence, operation.spec.sequence);
  if (operation.first_rank == rank) {
    operation.spec = spec;
    if (spec.follows != 0) ++job.open.following;
  }
  if (!operation.spec.Matches(spec)) {
    return flow_.FailOperation(job, operation,
                               {Code::kMismatch, job.DescribeMismatch(operation, rank, spec)}, now);
  }
  job.memory(spec.sequence, rank) = spec.data;
  job.device(spec.sequence, rank) = spec.device;
  if (spec.has_parts) {
    if (auto failure = KeepParts(job, operation, rank, spec); failure) {
      return flow_.FailOperation(job, operation, std::move(*failure), now);
    }
  }
  const bool awaits = (record.flags & ipc::kRecordAwaitsWord) != 0;
  // Until its word is there it counts as not posted: a stream may have what comes before to wait
  // for.
  if (!awaits && !UseMemory(job, operation, rank, spec, now)) return;
  if (awaits) operation.posts.awaited |= Bit(rank);
  if (!awaits) recorder_.OnPosted(job, operation, rank, spec.Bytes(), now);
  operation.posts.deadline_ns =
      std::min(operation.posts.deadline_ns, job.DeadlineOf(spec.timeout_ms, now));
  flow_.AddDeadline(operation.posts.deadline_ns);
  if (operation.paired() && !job.pairs().at(spec.sequence).waits()) {
    operation.spec.kind = ipc::kSend;  // from now on it is both
  }
  const bool numbered = !operation.paired();
  if (numbered && job.steering.drain.agreed && spec.sequence > job.steering.drain.operations) {
    return flow_.Withdraw(job, operation, DrainedFailure(job), now);
  }
  if (numbered && spec.sequence > job.departures.last_operation) {
    return flow_.FailOperation(job, operation, {Code::kPeerLost, job.departures.cause}, now);
  }
  if (Status status = CheckBetweenNodes(spec, job); !status) {
    return flow_.FailOperation(
        job, operation,
        {status.error().code(),
         fmt::format("{} posted what cannot be carried out as operation {}: {}",
                     job.DescribeRank(rank), spec.sequence, status.error().text())},
        now);
  }
  if (job.gradients_failure && (record.flags & ipc::kRecordFollowsGradients) != 0) {
    return flow_.Withdraw(job, operation, *job.gradients_failure, now);
  }
  if (awaits) Await(job, rank, record, spec.sequence);
  if (operation.paired() && job.nodes() != nullptr && spec.kind == ipc::kSend &&
      !job.IsHere(spec.target)) {
    return flow_.Announce(job, operation, now);
  }
  flow_.Begin(job, operation, now);
}

bool Intake::UseMemory(Job& job, Operation& operation, std::uint32_t rank,
                       const OperationSpec& spec, TimeNs now) {
  if (std::optional<Failure> overlap = FindOverlap(job, rank, spec); overlap) {
    ++board_.counters.records_refused;
    if (operation.paired()) {
      FailPost(job, job.pairs().at(spec.sequence), std::move(*overlap), now);
    } else {
      flow_.FailOperation(job, operation, std::move(*overlap), now);
    }
    return false;
  }
  const UsedRanges used = RangesOf(job, spec, rank);
  if (used.count == 0) return true;
  HR_CHECK((operation.in_use & Bit(rank)) == 0, operation.spec.sequence, rank);
  for (const OpenRange& range : used.all()) job.rank_entry(rank).open.Open(range);
  operation.in_use |= Bit(rank);
  return true;
}

void Intake::PostPair(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now) {
  if (job.failed) return flow_.CompleteRecord(job, rank, record.commit, &*job.failure);
  JobRank& entry = job.rank_entry(rank);
  const auto refused = [&](const Error& error) {
    ++board_.counters.records_refused;
    return Failure{error.code(), fmt::format("{} posted a record that cannot be carried out: {}",
                                             job.DescribeRank(rank), error.text())};
  };
  const Result<PairSides> sides = CheckSides(record, entry.session->identity());
  if (!sides) {
    // Nobody else can wait for it.
    const Failure failure = refused(sides.error());
    flow_.events().Report(job, failure.code, failure.text);
    return flow_.CompleteRecord(job, rank, record.commit, &failure);
  }
  Pair* const pair = FindOrOpenPair(job, rank, record, *sides, now);
  if (pair == nullptr) return;
  Operation& operation = pair->operation;
  const std::uint64_t sequence = operation.spec.sequence;
  job.RecordOf(sequence, rank) = record.commit;
  operation.posts.ranks |= Bit(rank);
  if ((record.flags & ipc::kRecordAwaitsWord) == 0) recorder_.Post(job, sequence, rank, now);
  if (std::optional<Failure> over = OverQuota(job); over) {
    return FailPost(job, *pair, std::move(*over), now);
  }
  Result<OperationSpec> spec = CheckRecord(record, *entry.session);
  if (!spec) return FailPost(job, *pair, refused(spec.error()), now);
  spec->sequence = sequence;
  Join(job, operation, rank, *spec, record, now);
}

// Its receive is to learn of it, also on another node.
void Intake::FailPost(Job& job, Pair& pair, Failure failure, TimeNs now) {
  const OperationSpec& spec = pair.operation.spec;
  const bool goes = spec.kind == ipc::kSend && job.nodes() != nullptr && !job.IsHere(spec.target);
  if (goes && !pair.announced) SendAnnounced(job, pair, failure);
  flow_.FailOperation(job, pair.operation, std::move(failure), now);
}

Pair* Intake::FindOrOpenPair(Job& job, std::uint32_t rank, const ipc::Record& record,
                             const PairSides& sides, TimeNs now) {
  const auto kind = static_cast<Collective>(record.kind);
  Pair* const found = job.pairs().Find(kind, sides);
  if (found == nullptr) {
    if (const auto failure = WhyNoPair(job, rank, sides); failure) {
      flow_.CompleteRecord(job, rank, record.commit, &*failure);
      return nullptr;
    }
    const bool trains =
        job.gradients && (job.gradients->AnyOpen() || job.gradients->head_index() != 0);
    if (!trains) flow_.settings().AtBorder(job, SettingChanges::NextOperation(job), now);
    Pair& opened = job.pairs().Open(kind, sides, rank);
    Posts& posts = opened.operation.posts;
    posts.opened_ns = now;
    opened.operation.since_ns = now;
    if (sides.source != ipc::kAnyRank) posts.among = Bit(sides.source) | Bit(sides.target);
    recorder_.ItemOpened(job, opened.operation);
    ++job.open.operations;
    return &opened;
  }
  if (found->operation.state == Operation::State::kTombstone) {
    const Failure failure = *found->operation.failure;
    job.pairs().Free(*found);
    flow_.CompleteRecord(job, rank, record.commit, &failure);
    return nullptr;
  }
  // The other side says which rank a receive from any rank got.
  const bool sends = kind == ipc::kSend;
  job.pairs().Match(*found, sends ? sides.source : found->operation.spec.source);
  found->operation.posts.among = Bit(found->operation.spec.source) | Bit(sides.target);
  return found;
}

std::optional<Failure> Intake::WhyNoPair(const Job& job, std::uint32_t rank,
                                         const PairSides& sides) const {
  const std::uint32_t other = sides.source == rank ? sides.target : sides.source;
  const auto is_gone = [&](std::uint32_t peer) { return peer == rank || job.IsGone(peer); };
  bool gone = true;
  for (std::uint32_t peer = 0; peer < job.world_size(); ++peer) {
    if (other == ipc::kAnyRank || peer == other) gone = gone && is_gone(peer);
  }
  if (gone && other != ipc::kAnyRank) {
    return Failure{
        Code::kPeerLost,
        fmt::format("{} left the job after {}, and {} has something to {} it",
                    job.DescribeRank(other), job.DescribeProgress(other), job.DescribeRank(rank),
                    sides.source == rank ? "send to" : "receive from")};
  }
  if (gone) {
    return Failure{Code::kPeerLost,
                   fmt::format("all other ranks have left the job, and {} has something to "
                               "receive from any of them",
                               job.DescribeRank(rank))};
  }
  if (refusing_) return Failure{Code::kUnavailable, "the service is shutting down"};
  const DrainState& drain = job.steering.drain;
  if (drain.agreed && job.ranks()[rank].operations >= drain.operations &&
      job.IterationsOf(rank) >= drain.iterations) {
    return DrainedFailure(job);
  }
  if (job.pairs().HasRoom(rank)) return {};
  return Failure{Code::kExhausted,
                 fmt::format("{} has {} sends and receives whose other side was not posted, which "
                             "is all it may: wait for some of them first",
                             job.DescribeRank(rank), kOperationsMax)};
}

void Intake::PostGradient(Job& job, std::uint32_t rank, const ipc::GradientRecord& record,
                          TimeNs now) {
  std::optional<Failure> refused = OverQuota(job);
  if (!refused) refused = CheckAndPost(job, rank, record, now);
  if (!refused) return;
  flow_.CompleteRecord(job, rank, record.commit, &*refused);
  flow_.FailGradients(job, *refused, now);
}

std::optional<Failure> Intake::CheckAndPost(Job& job, std::uint32_t rank,
                                            const ipc::GradientRecord& record, TimeNs now) {
  if (job.gradients_failure) return job.gradients_failure;
  const Session& session = *job.rank_entry(rank).session;
  const Result<std::uint32_t> tensor = CheckGradient(record, session);
  if (!tensor) {
    ++board_.counters.records_refused;
    return Failure{tensor.error().code(),
                   fmt::format("{} posted a gradient that cannot be moved: {}",
                               job.DescribeRank(rank), tensor.error().text())};
  }
  HR_CHECK(job.gradients != nullptr, rank, *tensor);
  Gradients& gradients = *job.gradients;
  const std::uint64_t iteration = gradients.IterationOf(*tensor);
  if (gradients.IsOpen(rank, *tensor)) {
    ++board_.counters.records_refused;
    return Failure{Code::kInvalidArgument,
                   fmt::format("{} posted {} again before it had ended: wait for it first",
                               job.DescribeRank(rank), job.DescribeGradient(*tensor))};
  }
  const DrainState& drain = job.steering.drain;
  if (drain.agreed && iteration > drain.iterations) {
    // This post alone: what is under way is to end well.
    const Failure drained = DrainedFailure(job);
    flow_.CompleteRecord(job, rank, record.commit, &drained);
    return {};
  }
  if (iteration > job.departures.last_iteration)
    return Failure{Code::kPeerLost, job.departures.cause};
  if (refusing_ && gradients.posts(*tensor).ranks == 0) {
    return Failure{Code::kUnavailable, "the service is shutting down"};
  }
  if (!gradients.SetContributors(iteration, record.contributors)) {
    ++board_.counters.records_refused;
    return Failure{
        Code::kMismatch,
        fmt::format("{} posted {} with {} contributors, unlike another record of that iteration: "
                    "set the same number on all ranks, between two iterations",
                    job.DescribeRank(rank), job.DescribeGradient(*tensor), record.contributors)};
  }
  const std::uint32_t timeout_ms =
      record.timeout_ms != 0 ? record.timeout_ms : session.identity().timeout_ms;
  const bool awaits = (record.flags & ipc::kRecordAwaitsWord) != 0;
  if (!awaits) {
    if (auto overlap = FindGradientOverlap(job, rank, *tensor); overlap) return overlap;
  }
  const TimeNs deadline_ns = job.DeadlineOf(timeout_ms, now);
  gradients.Post(rank, *tensor, record.commit, awaits, now, deadline_ns);
  flow_.AddDeadline(deadline_ns);
  if (awaits) {
    Await(job, rank, std::bit_cast<ipc::Record>(record), 0);
  } else {
    GradientReady(job, rank, *tensor, record, now);
  }
  return {};
}

std::optional<Failure> Intake::FindGradientOverlap(Job& job, std::uint32_t rank,
                                                   std::uint32_t tensor) {
  std::optional<Failure> overlap = FindOverlap(job, rank, tensor);
  if (overlap) ++board_.counters.records_refused;
  return overlap;
}

void Intake::GradientReady(Job& job, std::uint32_t rank, std::uint32_t tensor,
                           const ipc::GradientRecord& record, TimeNs now) {
  recorder_.PostGradient(job, rank, tensor, record, now);
  if (job.measured.times) {
    job.measured.times->Post(PlaceOf(job, rank), tensor, job.gradients->IterationOf(tensor),
                             record);
  }
  flow_.plans().Advance(job, now);
}

std::optional<Failure> Intake::OverQuota(const Job& job) {
  if (posts_per_uid_ == 0 || job.use->posts <= posts_per_uid_) return {};
  ++board_.counters.quota_refusals;
  return Failure{
      Code::kExhausted,
      fmt::format("uid {} has {} operations and gradients open on this node, which is all it may "
                  "(operations_per_uid = {}): wait for some to end before posting more, or have "
                  "operations_per_uid raised",
                  job.use->uid, posts_per_uid_, posts_per_uid_)};
}

void Intake::Await(Job& job, std::uint32_t rank, const ipc::Record& record,
                   std::uint64_t sequence) {
  HR_CHECK(record.commit == job.rank_entry(rank).posted, rank, record.commit);
  std::vector<AwaitedPost>& awaited = job.rank_entry(rank).awaited;
  // Once: later ones find the memory. Only who posts more sends and receives than an honest client
  // has room for needs more: there are as many as there may be pairs.
  if (awaited.capacity() < kAwaitedUsual) awaited.reserve(kAwaitedUsual);
  if (awaited.size() == awaited.capacity()) {
    const std::size_t dropped = std::erase_if(
        awaited, [&](const AwaitedPost& post) { return !IsAwaited(job, rank, post); });
    HR_CHECK(job.open.awaited >= dropped && awaited_ >= job.open.awaited, job.open.awaited,
             awaited_, dropped);
    job.open.awaited -= dropped;
    awaited_ -= dropped;
    if (awaited.size() > awaited.capacity() / 2) awaited.reserve(2 * awaited.capacity());
  }
  awaited.push_back({.record = record, .sequence = sequence});
  ++job.open.awaited;
  ++awaited_;
}

bool Intake::IsAwaited(Job& job, std::uint32_t rank, const AwaitedPost& post) {
  if (post.sequence == 0) {
    const Session::Gradients& gradients = *job.rank_entry(rank).session->gradients();
    return job.gradients->IsAwaited(rank, post.record.tensor - gradients.first.value,
                                    post.record.commit);
  }
  const Operation& operation = job.slot(post.sequence);
  return operation.open() && operation.spec.sequence == post.sequence && !operation.failure &&
         operation.posts.Awaits(rank);
}

bool Intake::CheckReadyWords(Jobs& jobs, TimeNs now) {
  if (awaited_ == 0) return false;
  looked_ns_ = now;
  bool any = false;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->open.awaited == 0) continue;
    for (std::uint32_t rank = 0; rank < job->world_size(); ++rank) {
      any |= CheckReadyWordsOf(*job, rank, now);
    }
  }
  return any;
}

// In the order of the records. What a rank's end or a failure has settled is forgotten here.
bool Intake::CheckReadyWordsOf(Job& job, std::uint32_t rank, TimeNs now) {
  JobRank& entry = job.rank_entry(rank);
  std::size_t kept = 0;
  bool any = false;
  for (std::size_t i = 0; i < entry.awaited.size(); ++i) {
    const AwaitedPost post = entry.awaited[i];
    if (entry.session == nullptr || !IsAwaited(job, rank, post)) continue;
    if (!entry.session->IsReady(post.record.commit)) {
      entry.awaited[kept++] = post;
      continue;
    }
    MarkReady(job, rank, post, now);
    any = true;
  }
  const std::size_t settled = entry.awaited.size() - kept;
  entry.awaited.resize(kept);
  HR_CHECK(job.open.awaited >= settled && awaited_ >= job.open.awaited, job.open.awaited, awaited_,
           settled);
  job.open.awaited -= settled;
  awaited_ -= settled;
  return any || settled > 0;
}

void Intake::MarkReady(Job& job, std::uint32_t rank, const AwaitedPost& post, TimeNs now) {
  job.Changed();
  if (post.sequence == 0) {
    auto record = std::bit_cast<ipc::GradientRecord>(post.record);
    const std::uint32_t tensor = TensorOf(job, rank, record);
    if (const auto overlap = FindGradientOverlap(job, rank, tensor); overlap) {
      return flow_.FailGradients(job, *overlap, now);
    }
    job.gradients->MarkReady(rank, tensor, now);
    // When the host posted it says nothing of when the GPU had it.
    record.posted_ns = static_cast<std::uint64_t>(now);
    return GradientReady(job, rank, tensor, record, now);
  }
  Operation& operation = job.slot(post.sequence);
  OperationSpec spec = operation.spec;
  HR_CHECK(operation.posts.Awaits(rank), post.sequence, rank);
  spec.tensor = TensorId{post.record.tensor};
  spec.data = job.memory(post.sequence, rank);
  if (!UseMemory(job, operation, rank, spec, now)) return;
  operation.posts.MarkReady(rank, now);
  recorder_.Post(job, post.sequence, rank, now);
  recorder_.OnPosted(job, operation, rank, operation.spec.Bytes(), now);
  if (operation.paired()) SendReady(job, job.pairs().at(post.sequence));
  if (operation.state == Operation::State::kGathering) flow_.Begin(job, operation, now);
}

}  // namespace headrace::service
