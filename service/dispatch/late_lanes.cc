// Whom the stages on lanes between nodes wait for: asked, and shown.
#include <array>

#include "service/dispatch/blocks.h"

namespace headrace::service {

// What a lane carries of an order ends in that order, so the first block of the operation says all.
void Blocks::AskLanes(Job& job, const Operation& operation) {
  std::array<const Part*, ipc::kLaneRowsMax> firsts{};
  for (const Block& block : job.blocks()) {
    if (block.sequence != operation.shape.sequence || block.step != Step::kBetweenNodes) continue;
    for (std::uint32_t index = 0; index < block.parts_count; ++index) {
      const Part& part = block.parts[index];
      if (part.state != Part::State::kMoving) continue;
      const Part*& first = firsts[part.stage.lane];
      if (first == nullptr || part.stage.position < first->stage.position) first = &part;
    }
  }
  for (const Part* const part : firsts) {
    if (part == nullptr) continue;
    // A lane that is too far behind will be asked again.
    lanes_[part->stage.lane].out.TrySend(AskStage{part->stage.token});
  }
}

void Blocks::TakeFlow(std::uint8_t lane, TimeNs flowed_ns) {
  if (!lanes_[lane].port.measures_flow) return;
  SetBusy(lanes_[lane], flowed_ns);
  lanes_[lane].queue_changed = true;
}

void Blocks::TakeStageWaits(Job& job, const StageWaits& message) {
  const StageName name = StageName::Unpack(message.token);
  if (name.block >= kBlocksMax || name.part >= kRailsMax) return;
  const Block& block = job.block(name.block);
  // It has ended meanwhile. (An answer overtakes no end: another stage of that name began later.)
  if (block.sequence == 0 || name.part >= block.parts_count) return;
  const Part& part = block.parts[name.part];
  if (part.state != Part::State::kMoving || part.stage.lane != message.lane) return;
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

}  // namespace headrace::service
