// What blocks wait for, as people read it.
#include "service/dispatch/blocks/blocks.h"

namespace headrace::service {

void Blocks::OnStageWaits(Job& job, const StageWaits& message) {
  const StageName name = StageName::Unpack(message.token);
  if (name.block >= kBlocksMax || name.part >= kRailsMax) return;
  const Block& block = job.block(name.block);
  // It has ended meanwhile. (An answer overtakes no end: another stage of that name began later.)
  if (block.sequence == 0 || name.part >= block.parts_count) return;
  const BlockPart& part = block.parts[name.part];
  if (part.state != BlockPart::State::kMoving || part.stage.lane != message.lane) return;
  Operation& operation = job.slot(block.sequence);
  if (operation.state != Operation::State::kMoving || operation.failure) return;
  const bool was_peer = operation.reason == ipc::WaitReason::kPeer;
  if (message.members == 0) {
    // Another of its lanes may wait for somebody.
    if (was_peer && operation.lane == message.lane) {
      SetReason(job, operation, ipc::WaitReason::kNone, 0);
    }
    return;
  }
  if (was_peer && operation.lane == message.lane && operation.reason_argument == message.members) {
    return;
  }
  operation.lane = message.lane;
  SetReason(job, operation, ipc::WaitReason::kPeer, message.members);
}

void Blocks::ExplainHeads(Jobs& jobs, std::uint8_t lane, TimeNs now) {
  for (const auto& head : queue_.ExplainHeads(lane, now)) {
    ExplainHead(JobOf(jobs, head.stage.job), head);
  }
}

void Blocks::ExplainHead(Job& job, const schedule::UnifiedQueue::HeadWaits& head) {
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
  SetReason(job, operation, reason, argument);
}

void Blocks::SetReason(Job& job, Operation& operation, ipc::WaitReason reason,
                       std::uint64_t argument) {
  operation.reason = reason;
  operation.reason_argument = argument;
  recorder_.ShowItem(job, operation);
}

}  // namespace headrace::service
