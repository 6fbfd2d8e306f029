#include "service/dispatch/blocks/wait_reasons.h"

namespace headrace::service {

void WaitReasons::OnStageWaits(Job& job, const StageWaits& message) {
  const StageToken name = StageToken::Unpack(message.token);
  if (name.block >= kBlocksMax || name.part >= kRailsMax) return;
  const Block& block = job.block(name.block);
  // It has ended meanwhile. (An answer overtakes no end: another stage of that name began later.)
  if (block.sequence == 0 || name.part >= block.parts_count) return;
  const BlockPart& part = block.parts[name.part];
  if (part.state != BlockPart::State::kMoving || part.queued.lane != message.lane) return;
  Operation& operation = job.slot(block.sequence);
  if (operation.state != Operation::State::kMoving || operation.failure) return;
  const bool was_peer = operation.reason == ipc::WaitReason::kPeer;
  if (message.members == 0) {
    // Another of its lanes may wait for somebody.
    if (was_peer && operation.lane == message.lane) {
      Set(job, operation, ipc::WaitReason::kNone, 0);
    }
    return;
  }
  if (was_peer && operation.lane == message.lane && operation.reason_argument == message.members) {
    return;
  }
  operation.lane = message.lane;
  Set(job, operation, ipc::WaitReason::kPeer, message.members);
}

void WaitReasons::ExplainHead(Job& job, const schedule::UnifiedQueue::HeadWaits& head) {
  Operation& operation = job.slot(SequenceOf(head.stage.position));
  // Other blocks of it are on their way.
  if (operation.state != Operation::State::kWaiting) return;
  ipc::WaitReason reason = ipc::WaitReason::kBehindJob;
  const std::uint64_t argument = head.wait.argument;
  switch (head.wait.reason) {
    case schedule::Wait::Reason::kNoCredit:
      reason = ipc::WaitReason::kNoCredit;
      break;
    case schedule::Wait::Reason::kInFlight:
      reason = ipc::WaitReason::kInFlight;
      break;
    case schedule::Wait::Reason::kLaneFull:
      reason = ipc::WaitReason::kLaneFull;
      break;
    case schedule::Wait::Reason::kRateLimit:
      // How long differs at every look; people read it as of when the row was written.
      if (operation.reason == ipc::WaitReason::kRateLimit) return;
      reason = ipc::WaitReason::kRateLimit;
      break;
    default:
      break;
  }
  if (operation.reason == reason && operation.reason_argument == argument) return;
  Set(job, operation, reason, argument);
}

void WaitReasons::Set(Job& job, Operation& operation, ipc::WaitReason reason,
                      std::uint64_t argument) {
  operation.reason = reason;
  operation.reason_argument = argument;
  recorder_.ShowItem(job, operation);
}

void WaitReasons::ShowGatheringAgain(Job& job) {
  job.ForEachOpen([&](Operation& operation) {
    if (operation.state == Operation::State::kGathering) ShowGathering(job, operation);
  });
}

void WaitReasons::ShowGathering(Job& job, Operation& operation) {
  if (operation.paired()) return ShowWaitingPair(job, operation);
  if (!job.formed() && operation.posts.ranks == job.attached_ranks()) {
    return Set(job, operation, ipc::WaitReason::kNodesNotReady, 0);
  }
  if (const auto awaited = job.FirstAwaited(operation.posts); awaited) {
    return Set(job, operation, ipc::WaitReason::kGpuNotReady, *awaited);
  }
  if (job.formed() && operation.posts.ranks == job.local_ranks()) {
    if (job.WaitsForEarlier(operation)) {
      return Set(job, operation, ipc::WaitReason::kBehindBlock, operation.spec.sequence - 1);
    }
    if (job.WaitsForIteration(operation.spec)) {
      return Set(job, operation, ipc::WaitReason::kIteration, operation.spec.follows);
    }
    const bool paused = operation.spec.sequence > job.steering.paused_after;
    return Set(job, operation, paused ? ipc::WaitReason::kPaused : ipc::WaitReason::kNodesNotReady,
               paused ? job.in_force.paused_by : 0);
  }
  const std::uint32_t missing = job.FirstMissing(operation.posts);
  const auto reason = job.rank_entry(missing).session ? ipc::WaitReason::kRankNotReady
                                                      : ipc::WaitReason::kRankNotAttached;
  Set(job, operation, reason, missing);
}

void WaitReasons::ShowWaitingPair(Job& job, Operation& operation) {
  if (const auto awaited = job.FirstAwaited(operation.posts); awaited) {
    return Set(job, operation, ipc::WaitReason::kGpuNotReady, *awaited);
  }
  const OperationSpec& spec = operation.spec;
  const Pair& pair = job.pairs().at(spec.sequence);
  if (!pair.waits()) {
    const bool sender_late = pair.away == Away::kComes && !pair.send_ready;
    return Set(job, operation,
               sender_late ? ipc::WaitReason::kGpuNotReady : ipc::WaitReason::kPaused,
               sender_late ? spec.source : job.in_force.paused_by);
  }
  if (spec.source == ipc::kAnyRank) {
    return Set(job, operation, ipc::WaitReason::kNoSend, ipc::kAnyRank);
  }
  const bool sent = spec.kind == ipc::kSend;
  const std::uint32_t missing = sent ? spec.target : spec.source;
  const bool may_be_here = !job.formed() || job.IsHere(missing);
  if (may_be_here && job.rank_entry(missing).session == nullptr) {
    return Set(job, operation, ipc::WaitReason::kRankNotAttached, missing);
  }
  Set(job, operation, sent ? ipc::WaitReason::kNoReceive : ipc::WaitReason::kNoSend, missing);
}

}  // namespace headrace::service
