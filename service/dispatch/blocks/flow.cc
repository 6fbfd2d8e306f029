#include "service/dispatch/blocks/flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/blocks/cut.h"
#include "service/dispatch/blocks/message_blocks.h"
#include "service/dispatch/job/overlap.h"
#include "service/dispatch/job/pair_notices.h"
#include "service/dispatch/observe/scratch_text.h"
#include "service/dispatch/observe/wait_chain.h"
#include "service/dispatch/observe/wait_reports.h"

namespace headrace::service {
namespace {

// A failure that began with this work item names it already.
Failure NamingOpen(const Failure& failure, const std::string& open) {
  if (failure.text.starts_with(open)) return failure;
  return {failure.code, fmt::format("{}; {} was open", failure.text, open)};
}

}  // namespace

Flow::Flow(std::vector<LanePort> lanes, BoardWriter& board, Outgoing<PeersMessage>& peers,
           Outgoing<RpcMessage>& rpc, Outgoing<WatchMessage>& watch,
           Outgoing<MappingMessage>& mapping)
    : board_(board),
      recorder_(board),
      wait_reasons_(recorder_),
      events_(watch),
      lanes_(std::move(lanes), board),
      blocks_(lanes_, board, recorder_, wait_reasons_, rpc, mapping),
      settings_(blocks_, events_),
      plans_(lanes_, blocks_, board, recorder_, settings_, events_, peers, rpc, mapping),
      peers_(peers) {}

void Flow::AddJob(Job& job, TimeNs now) {
  blocks_.AddJob(job, now);
  job.record = &recorder_.OpenJob(job, now);
  job.use = &FindUse(job.owner_uid());
  job.verify = verify_;
  ++job.use->jobs;
}

void Flow::RemoveJob(Job& job, TimeNs now) {
  HR_CHECK(!job.busy() && !job.HasSessions(), job.id().value, job.open.operations);
  HR_CHECK(job.use->jobs > 0, job.use->uid);
  settings_.ReportLostSettings(job);
  if (job.gradients) plans_.rows().Close(job);
  recorder_.CloseJob(job, now);
  blocks_.RemoveJob(job);
  --job.use->jobs;
  std::erase_if(uses_, [](const auto& use) { return use->jobs == 0; });
}

void Flow::SetLayout(Job& job, Session& session, const struct SetLayout& message, TimeNs now) {
  if (const auto failure = plans_.SetLayout(job, session, message); failure) {
    FailGradients(job, *failure, now);
  }
}

void Flow::AcceptSwitch(Job& job, const PlanSwitch& message, TimeNs now) {
  if (const auto failure = plans_.AcceptSwitch(job, message, now); failure) {
    FailGradients(job, *failure, now);
  }
}

void Flow::ScratchBooked(Job* job, const struct ScratchBooked& message, TimeNs now) {
  if (auto failure = blocks_.scratch().OnBooked(job, message))
    FailJob(*job, std::move(*failure), Found::kHere, now);
}

void Flow::ScratchMade(Job& job, struct ScratchMade message, TimeNs now) {
  if (!message.memory) {
    const Error error = message.memory.error().Within("take GPU memory to other nodes");
    return FailJob(job, {error.code(), error.text()}, Found::kHere, now);
  }
  if (const auto news = DescribeScratch(job, message)) events_.Report(job, news->code, news->text);
  blocks_.AddScratch(job, std::move(message), now);
}

void Flow::OnMoved(Job* job, const LaneMoved& message) {
  if (job == nullptr || job->nodes() == nullptr) return;
  if (message.node >= job->nodes()->nodes.size()) return;
  plans_.OnMoved(*job, message.lane);
  events_.AnnounceMove(*job, lanes_.Name(message.lane), job->nodes()->nodes[message.node].name,
                       message.move);
}

void Flow::Form(Job& job, JobNodes nodes, TimeNs now) {
  if (const Status status = job.Form(std::move(nodes)); !status) {
    const Error error = status.error().Within("what its nodes have agreed on");
    return FailJob(job, {error.code(), error.text()}, Found::kHere, now);
  }
  recorder_.Form(job);
  if (job.nodes() != nullptr) {
    lanes_.SetCosts(job.nodes()->costs);
    // One node alone encodes nothing.
    const bool encodes = job.nodes()->nccl_lanes == 0 && job.nodes()->data_nodes_count() > 1;
    job.device_codecs = encodes ? lanes_.DeviceCodecs() : 0;
    events_.Report(job, Code::kOk, job.DescribeNodes());
  }
  if (job.nodes() != nullptr) {
    for (const std::uint64_t sequence : SendsToAnnounce(job)) {
      Announce(job, job.pairs().at(sequence).operation, now);
    }
    SendWhoHasLeft(job);
  }
  // People may have steered it before its lanes knew it.
  if (job.nodes() != nullptr && job.in_force.share != schedule::JobShare{})
    blocks_.SetShare(job, now);
  BeginHeldBack(job, now);
}

void Flow::Announce(Job& job, Operation& operation, TimeNs now) {
  Pair& pair = job.pairs().at(operation.spec.sequence);
  SendAnnounced(job, pair);
  if (pair.data_size > 0) return End(job, operation, now);
  Begin(job, operation, now);
}

void Flow::Begin(Job& job, Operation& operation, TimeNs now) {
  if (!IsReady(job, operation)) return wait_reasons_.ShowGathering(job, operation);
  std::uint64_t sequence = operation.spec.sequence;
  const bool ordered = !operation.paired() && job.nodes() != nullptr;
  MakeReady(job, operation, now);
  while (ordered) {
    Operation& next = job.slot(++sequence);
    const bool waits = next.state == Operation::State::kGathering;
    if (!waits || next.spec.sequence != sequence) return;
    if (!IsReady(job, next)) return wait_reasons_.ShowGathering(job, next);
    MakeReady(job, next, now);
  }
}

void Flow::MakeReady(Job& job, Operation& operation, TimeNs now) {
  // A barrier, or nothing to move.
  const bool crosses = operation.paired()
                           ? job.pairs().at(operation.spec.sequence).away != Away::kNo
                           : job.nodes() != nullptr;
  const bool in_messages = MovesInMessages(operation.spec.kind);
  // Each rank has a count of its own for messages.
  const bool moves = in_messages ? MessageBlocksCount(job, operation.spec, 0) != 0
                                 : operation.spec.count != 0 || crosses;
  if (!moves) return End(job, operation, now);
  if (operation.comes && ReceiveData(job, operation, now)) return;
  if (in_messages) return blocks_.Begin(job, operation, now);
  const std::uint64_t block_bytes =
      job.nodes() == nullptr ? 0 : BlockBytesBetweenNodes(operation.spec, *job.nodes());
  const std::uint64_t blocks =
      operation.spec.uneven
          ? PartNumbersCount(PartsOf(job, operation.spec), operation.spec.dtype, block_bytes)
          : BlocksCount(operation.spec, job.world_size(), block_bytes);
  if (blocks > kBlocksPerOperationMax) {
    return FailOperation(
        job, operation,
        {Code::kExhausted,
         fmt::format("{} is more than {} blocks of {} bytes: configure larger blocks",
                     job.DescribeOperation(operation), kBlocksPerOperationMax, block_bytes)},
        now);
  }
  if (IsLeftAsItIs(job, operation) && !job.record->said_as_it_is) {
    job.record->said_as_it_is = true;
    events_.Report(
        job, Code::kUnavailable,
        fmt::format(
            "{} is to cross as {}, and crosses as it is, as do all like it: NCCL takes GPUs' "
            "memory so, and nodes do not compare their codecs there; gpu_network = staged "
            "compresses",
            job.DescribeOperation(operation), Name(operation.spec.codec)));
  }
  blocks_.Begin(job, operation, now);
}

// Whether a codec was asked for that NCCL's lanes leave out.
bool Flow::IsLeftAsItIs(const Job& job, const Operation& operation) {
  return operation.spec.codec != Codec::kNone && operation.spec.OnGpu() && job.nodes() != nullptr &&
         CrossesFromGpus(operation.spec, *job.nodes());
}

// What came with the announcement. Its receiver has said how many elements it expects, and was
// compared with its sender.
bool Flow::ReceiveData(Job& job, Operation& operation, TimeNs now) {
  Pair& pair = job.pairs().at(operation.spec.sequence);
  if (pair.data_size == 0) return false;
  HR_CHECK(pair.data.size() == operation.spec.Bytes(), pair.data.size(), operation.spec.Bytes());
  std::ranges::copy(pair.data, job.memory(operation.spec.sequence, operation.spec.target));
  SendReceived(job, pair);
  pair.other_knows = true;
  End(job, operation, now);
  return true;
}

void Flow::BeginHeldBack(Job& job, TimeNs now) {
  std::vector<std::uint64_t> ready;
  job.ForEachOpen([&](const Operation& operation) {
    if (operation.state == Operation::State::kGathering && IsReady(job, operation)) {
      ready.push_back(operation.spec.sequence);
    }
  });
  std::ranges::sort(ready);
  for (const std::uint64_t sequence : ready) {
    Operation& operation = job.slot(sequence);
    // An earlier one of them may have failed the job.
    if (operation.state != Operation::State::kGathering) continue;
    Begin(job, operation, now);
  }
  wait_reasons_.ShowGatheringAgain(job);
  if (job.gradients) plans_.Advance(job, now);
}

void Flow::StageEnded(Job& job, const transport::Completion& completion, TimeNs now) {
  Blocks::Ended ended = blocks_.StageEnded(job, completion, now);
  // One that peers have no room for is not compared.
  if (ended.hash && job.nodes() != nullptr) peers_.TrySend(BlockHashed{job.id(), *ended.hash});
  Operation& operation = ended.operation;
  if (ended.failure && IsAway(job, operation)) {
    // A lane that fails a stage by itself has lost its links, and the job's others with them.
    FailJob(job, std::move(*ended.failure), Found::kHere, now);
  } else if (ended.failure) {
    FailOperation(job, operation, std::move(*ended.failure), now);
  }
  // A failure may have ended it already.
  if (operation.open() && operation.moved()) End(job, operation, now);
}

void Flow::CompleteRecord(Job& job, std::uint32_t rank, std::uint64_t record,
                          const Failure* failure, std::uint8_t source) {
  JobRank& entry = job.rank_entry(rank);
  HR_CHECK(entry.session != nullptr, rank, record);
  // Each record is completed once, whatever it was and however it ends.
  HR_CHECK(entry.ended < entry.posted && job.use->posts > 0, rank, record, entry.posted);
  const Code code = failure != nullptr ? failure->code : Code::kOk;
  const std::string_view text = failure != nullptr ? std::string_view(failure->text) : "";
  if (entry.session->completions().End(record, code, text, source)) ++board_.counters.wake_calls;
  ++entry.ended;
  --job.use->posts;
}

void Flow::End(Job& job, Operation& operation, TimeNs now) {
  HR_CHECK(operation.blocks_open == 0, operation.spec.sequence, operation.blocks_open);
  job.Changed();
  if (!operation.planned()) {
    CompleteOperation(job, operation);
    if (operation.open()) {
      HR_CHECK(job.open.operations > 0, operation.spec.sequence);
      --job.open.operations;
      if (operation.spec.follows != 0) {
        HR_CHECK(job.open.following > 0, operation.spec.sequence);
        --job.open.following;
      }
      recorder_.ItemEnded(job, operation, now);
    }
    if (operation.paired()) return ClosePair(job, job.pairs().at(operation.spec.sequence));
    operation.state = operation.completed == job.local_ranks() ? Operation::State::kFree
                                                               : Operation::State::kTombstone;
    return;
  }
  const bool failed = operation.failure.has_value();
  const std::uint64_t iteration = operation.iteration;
  const bool was_last = !failed && CompleteBlock(job, operation, now);
  recorder_.ItemEnded(job, operation, now);
  job.gradients->Free(operation);
  if (failed) return CompleteFailedGradients(job);
  if (was_last) plans_.EndIteration(job, iteration);
  if (was_last && job.open.following > 0) return BeginHeldBack(job, now);
  plans_.Advance(job, now);
}

// The rank at the other side is told how the pair ended, with two exceptions. A receive that timed
// out, or that takes any source, has matched no send, so a later send is matched with the next
// receive. A rank that is gone cannot be told.
void Flow::ClosePair(Job& job, Pair& pair) {
  Operation& operation = pair.operation;
  if (pair.data_size > 0 && pair.away == Away::kGoes && !operation.failure) {
    return job.pairs().KeepSent(pair);
  }
  const bool timed_out = operation.failure && operation.failure->code == Code::kTimeout;
  const OperationSpec& spec = operation.spec;
  const bool from_any = spec.source == ipc::kAnyRank;
  const bool is_receive = spec.kind == ipc::kReceive;
  const bool has_no_news =
      (is_receive && (timed_out || from_any)) || job.IsGone(is_receive ? spec.source : spec.target);
  // The receiver's node keeps a send; and only what the sender's node said is news there.
  const bool is_known_there =
      pair.away == Away::kGoes || (pair.away == Away::kComes && !pair.withdrawn);
  if (!pair.waits() || is_known_there || has_no_news) return job.pairs().Free(pair);
  job.pairs().DropData(pair);
  operation.state = Operation::State::kTombstone;
}

void Flow::CompleteOperation(Job& job, Operation& operation) {
  const Failure* const failure = operation.failure ? &*operation.failure : nullptr;
  const std::uint64_t sequence = operation.spec.sequence;
  const bool has_source = operation.paired() && !failure;
  const RankMask ended = operation.posts.ranks & ~operation.completed;
  for (RankMask left = ended; left != 0; left &= left - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(left));
    const bool receives = has_source && rank == operation.spec.target;
    CompleteRecord(job, rank, job.RecordOf(sequence, rank), failure,
                   receives ? static_cast<std::uint8_t>(operation.spec.source) : std::uint8_t{0});
  }
  if (has_source) {
    const bool receives = (ended & Bit(operation.spec.target)) != 0;
    const bool sends = (ended & Bit(operation.spec.source)) != 0;
    recorder_.PairEnded(job, sends ? 1 : 0, receives ? 1 : 0, operation.spec.Bytes());
  }
  operation.completed = operation.posts.ranks;
  for (RankMask left = std::exchange(operation.in_use, 0); left != 0; left &= left - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(left));
    OperationSpec spec = operation.spec;
    spec.data = job.memory(sequence, rank);
    const UsedRanges ranges = RangesOf(job, spec, rank);
    for (const OpenRange& range : ranges.all()) job.rank_entry(rank).open.Close(range);
  }
  if (!operation.paired()) job.part_tables().Drop(sequence);
}

bool Flow::CompleteBlock(Job& job, const Operation& operation, TimeNs now) {
  job.measured.times->block(operation.iteration, operation.index).end_ns = now;
  const Gradients::Ended ended = job.gradients->End(operation);
  for (const std::uint32_t tensor : ended.gradients) {
    CompleteGradient(job, tensor, nullptr);
    job.gradients->Close(tensor);
  }
  return ended.iteration;
}

void Flow::CompleteGradient(Job& job, std::uint32_t tensor, const Failure* failure) {
  for (RankMask left = job.gradients->posts(tensor).ranks; left != 0; left &= left - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(left));
    CompleteRecord(job, rank, job.gradients->RecordOf(rank, tensor), failure);
  }
}

// Completes the gradients as soon as no lane writes to any of them.
void Flow::CompleteFailedGradients(Job& job) {
  if (job.gradients->operations_open() > 0) return;
  HR_CHECK(job.gradients_failure.has_value(), job.id().value);
  for (std::uint32_t tensor = 0; tensor < job.gradients->count(); ++tensor) {
    if (job.gradients->posts(tensor).ranks == 0) continue;
    const Failure failure = NamingOpen(*job.gradients_failure, job.DescribeGradient(tensor));
    CompleteGradient(job, tensor, &failure);
    job.gradients->Close(tensor);
  }
}

void Flow::FailOperation(Job& job, Operation& operation, Failure failure, TimeNs now) {
  if (operation.planned()) return FailGradients(job, failure, now);
  // A pair fails on two nodes alone; but of a send that no other node has heard of, nobody could
  // tell the receive that it was lost.
  const bool unheard = operation.paired() && operation.spec.kind == ipc::kSend && !job.formed();
  if (job.spans_nodes() && (!operation.paired() || unheard))
    return FailJob(job, std::move(failure), Found::kHere, now);
  FailOperationHere(job, operation, std::move(failure), now);
}

void Flow::FailOperationHere(Job& job, Operation& operation, Failure failure, TimeNs now) {
  // An operation that is already failing keeps its first cause.
  if (operation.failure) return;
  if (!job.failure) events_.Report(job, failure.code, failure.text);
  Withdraw(job, operation, failure, now);
}

void Flow::FailGradients(Job& job, const Failure& failure, TimeNs now) {
  if (job.spans_nodes()) return FailJob(job, failure, Found::kHere, now);
  if (!job.failure && !job.gradients_failure) events_.Report(job, failure.code, failure.text);
  FailGradientsHere(job, failure, now);
}

void Flow::FailGradientsHere(Job& job, const Failure& failure, TimeNs now) {
  if (!job.gradients || job.gradients_failure) return;
  job.gradients_failure = failure;
  recorder_.HeadFailed(job, failure, now);
  for (Operation& operation : job.gradients->operations()) {
    if (operation.open()) Withdraw(job, operation, failure, now);
  }
  plans_.rows().ShowHead(job, now);
  if (job.open.following > 0) {
    job.ForEachOpen([&](Operation& operation) {
      if (operation.spec.follows != 0) Withdraw(job, operation, failure, now);
    });
  }
  CompleteFailedGradients(job);
}

void Flow::Withdraw(Job& job, Operation& operation, const Failure& failure, TimeNs now) {
  HR_CHECK(operation.open(), operation.spec.sequence);
  if (operation.failure) return;
  operation.failure = failure;
  operation.since_ns = now;
  if (operation.paired()) SendEnded(job, job.pairs().at(operation.spec.sequence), failure);
  blocks_.Abandon(job, operation, now);
  if (operation.moved()) return End(job, operation, now);
  // By then the lane must have let go of its memory.
  operation.posts.deadline_ns = now + kLetGoMax;
  if (IsAway(job, operation)) AddDeadline(operation.posts.deadline_ns);
}

void Flow::FailJob(Job& job, Failure failure, Found found, TimeNs now) {
  if (!job.failed) {
    events_.Report(job, failure.code, failure.text);
    events_.ReportUnreceived(job);
    if (found == Found::kHere && job.spans_nodes()) {
      // Sent once in a job's life at most.
      peers_.Send(JobFailed{job.id(), failure.code, failure.text});
    }
    job.failure = failure;
    job.SetFailed(now);
  }
  FailOpenOperations(job, Which::kAll, 0, *job.failure, now);
  FailGradientsHere(job, *job.failure, now);
}

void Flow::LinksFailed(Job& job, Failure failure, TimeNs now) {
  if (job.failed || job.links.failure) return;
  job.links.failure = std::move(failure);
  job.links.failed_ns = now;
  AddDeadline(now + kBetterCauseWait);
}

void Flow::FailOpenOperations(Job& job, Which which, std::uint32_t rank, const Failure& failure,
                              TimeNs now) {
  job.ForEachOpen([&](Operation& operation) {
    if (which == Which::kNotPostedBy && !NeedsPostOf(job, operation, rank)) return;
    FailOperationHere(job, operation, NamingOpen(failure, job.DescribeOperation(operation)), now);
  });
}

bool Flow::NeedsPostOf(const Job& job, const Operation& operation, std::uint32_t rank) {
  if (!operation.paired()) {
    return !operation.posts.Has(rank) && (operation.posts.among & Bit(rank)) != 0;
  }
  const OperationSpec& spec = operation.spec;
  const Pair& pair = job.pairs().at(spec.sequence);
  // Whether a send has been matched, its receiver's node knows.
  if (!pair.waits() || pair.away == Away::kGoes) return false;
  if (spec.kind == ipc::kSend) return spec.target == rank;
  if (spec.source != ipc::kAnyRank) return spec.source == rank;
  // Anybody may send, as long as there is somebody.
  for (std::uint32_t other = 0; other < job.world_size(); ++other) {
    if (other != spec.target && !job.IsGone(other)) return false;
  }
  return true;
}

void Flow::FailPairsOf(Job& job, std::uint32_t rank, const Failure& failure, TimeNs now) {
  if (job.open.operations == 0) return;
  job.ForEachOpen([&](Operation& operation) {
    if (!operation.paired() || !NeedsPostOf(job, operation, rank)) return;
    FailOperationHere(job, operation, NamingOpen(failure, job.DescribeOperation(operation)), now);
  });
}

void Flow::RefuseBeyond(Job& job, const DrainState& drain, const Failure& failure, TimeNs now) {
  for (Operation& operation : job.operations()) {
    if (operation.open() && operation.spec.sequence > drain.operations) {
      Withdraw(job, operation, failure, now);
    }
  }
  if (!job.gradients || job.gradients_failure) return;
  Gradients& gradients = *job.gradients;
  // No block of these iterations has begun.
  for (std::uint32_t tensor = 0; tensor < gradients.count(); ++tensor) {
    if (gradients.posts(tensor).ranks == 0) continue;
    if (gradients.IterationOf(tensor) <= drain.iterations) continue;
    CompleteGradient(job, tensor, &failure);
    gradients.Refuse(tensor);
  }
}

void Flow::LimitTo(Job& job, std::uint64_t last, std::uint64_t last_iteration,
                   const std::string& cause, TimeNs now) {
  if (last >= job.departures.last_operation && last_iteration >= job.departures.last_iteration)
    return;
  job.departures.last_operation = std::min(job.departures.last_operation, last);
  job.departures.last_iteration = std::min(job.departures.last_iteration, last_iteration);
  job.departures.cause = fmt::format("{} after operation {}", cause, last);
  if (job.gradients) job.departures.cause += fmt::format(" and iteration {}", last_iteration);
  const bool beyond = std::ranges::any_of(job.operations(), [last](const Operation& operation) {
    return operation.open() && operation.spec.sequence > last;
  });
  if (beyond || IsBeyond(job, last_iteration))
    FailJob(job, {Code::kPeerLost, job.departures.cause}, Found::kHere, now);
}

void Flow::LimitGradients(Job& job, std::uint64_t last_iteration, const Failure& failure,
                          TimeNs now) {
  if (!job.gradients || last_iteration >= job.departures.last_iteration) return;
  job.departures.last_iteration = last_iteration;
  job.departures.cause = failure.text;
  if (IsBeyond(job, last_iteration)) FailGradientsHere(job, failure, now);
}

bool Flow::IsBeyond(const Job& job, std::uint64_t last) {
  if (!job.gradients || !job.gradients->AnyOpen()) return false;
  for (std::uint32_t tensor = 0; tensor < job.gradients->count(); ++tensor) {
    if (job.gradients->posts(tensor).ranks != 0 && job.gradients->IterationOf(tensor) > last)
      return true;
  }
  return false;
}

bool Flow::IsAway(Job& job, const Operation& operation) {
  return operation.paired() && job.pairs().at(operation.spec.sequence).away != Away::kNo;
}

void Flow::Expire(Jobs& jobs, TimeNs now) {
  if (now >= plans_.next_release()) plans_.Release(jobs, now);
  if (now < next_deadline_) return;
  next_deadline_ = kNever;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->links.failure && !job->failed) {
      if (now >= job->links.failed_ns + kBetterCauseWait) {
        FailJob(*job, *job->links.failure, Found::kHere, now);
      } else {
        AddDeadline(job->links.failed_ns + kBetterCauseWait);
      }
    }
    if (job->steering.frozen_since_ns != 0) continue;
    job->ForEachOpen([&](Operation& operation) {
      if (operation.failure && (job->failed || !IsAway(*job, operation))) return;
      if (operation.posts.deadline_ns > now) {
        AddDeadline(operation.posts.deadline_ns);
      } else if (operation.failure) {
        FailJob(*job, DescribeHeld(*job, operation, kLetGoMax), Found::kHere, now);
      } else {
        Failure failure = DescribeTimeout(*job, operation, lanes_, now);
        // To find a chain takes a look at all that its user has open.
        if (chains_.TryAcquire(now)) failure.text += DescribeWaitChain(jobs, *job, operation);
        FailOperation(*job, operation, std::move(failure), now);
      }
    });
    ExpireSent(*job, now);
    if (job->gradients && !job->gradients_failure) ExpireGradients(*job, now);
  }
}

// Nobody has received it: the receive that may still come ends with that.
void Flow::ExpireSent(Job& job, TimeNs now) {
  if (job.failed) return;
  job.pairs().ForEachSent([&](Pair& pair) {
    const TimeNs deadline_ns = pair.operation.posts.deadline_ns;
    if (deadline_ns > now) return AddDeadline(deadline_ns);
    const Failure failure = DescribeUnreceived(job, pair.operation, now);
    SendEnded(job, pair, failure);
    events_.ReportUnreceived(job, pair, failure);
    job.pairs().Free(pair);
  });
}

void Flow::ExpireGradients(Job& job, TimeNs now) {
  for (std::uint32_t tensor = 0; tensor < job.gradients->count(); ++tensor) {
    const TimeNs deadline_ns = job.gradients->posts(tensor).deadline_ns;
    if (deadline_ns > now) {
      AddDeadline(deadline_ns);
      continue;
    }
    return FailGradients(job, DescribeTimeout(job, tensor, lanes_, now), now);
  }
}

void Flow::PostponeJob(Job& job, TimeNs by_ns) {
  job.ForEachOpen([by_ns](Operation& operation) { operation.posts.Postpone(by_ns); });
  job.pairs().ForEachSent([by_ns](Pair& pair) { pair.operation.posts.Postpone(by_ns); });
  if (job.gradients) job.gradients->PostponeDeadlines(by_ns);
}

void Flow::ResumeDeadlines(Job& job, TimeNs frozen_ns, TimeNs now) {
  PostponeJob(job, frozen_ns);
  next_deadline_ = std::min(next_deadline_, now);  // to be found again
}

void Flow::Postpone(Jobs& jobs, TimeNs by_ns) {
  for (const std::unique_ptr<Job>& job : jobs) {
    // Those of a job that is to be paused stand still as it is.
    if (job->steering.frozen_since_ns == 0) PostponeJob(*job, by_ns);
  }
  if (next_deadline_ != kNever) next_deadline_ += by_ns;
}

UidUse& Flow::FindUse(std::uint32_t uid) {
  for (const std::unique_ptr<UidUse>& use : uses_) {
    if (use->uid == uid) return *use;
  }
  uses_.push_back(std::make_unique<UidUse>(UidUse{.uid = uid}));
  return *uses_.back();
}

}  // namespace headrace::service
