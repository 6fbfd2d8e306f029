// What moves: an operation that every rank posts alike, a send with its receive, which two ranks
// post (pairs.h), or one block of the job's plan, which the service carries out as if it were one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/base/error.h"
#include "ipc/board_layout.h"
#include "service/dispatch/job/block.h"
#include "service/dispatch/job/operation_spec.h"
#include "service/dispatch/job/posts.h"
#include "service/dispatch/job/wire_plan.h"
#include "service/session/block_hash.h"
#include "transport/transport.h"

namespace headrace::service {

inline constexpr std::uint64_t kOperationsMax = ipc::kOperationsMax;  // open, per job

struct Failure {
  Code code = Code::kInternal;
  std::string text;
};

struct Operation {
  enum class State : std::uint8_t { kFree, kGathering, kWaiting, kMoving, kTombstone };

  State state = State::kFree;
  OperationSpec spec;  // the first post
  std::uint32_t first_rank = 0;
  Posts posts;
  RankMask in_use = 0;             // ranks in whose JobRank::open its memory is
  RankMask completed = 0;          // ranks whose completion word has been written
  TimeNs since_ns = 0;             // when it came into its state
  std::uint64_t block_bytes = 0;   // of the blocks it is cut into; 0: it is one
  std::uint64_t blocks_count = 0;  // it is cut into, once it is ready
  std::uint64_t blocks_made = 0;   // that have left for the queue
  std::uint64_t blocks_ended = 0;
  std::uint64_t blocks_open = 0;   // in the queue or on a lane
  std::uint64_t parts_moving = 0;  // of them, on lanes
  std::uint32_t next_index = 0;    // of what moves in messages: of no block before it was made
  BlockStage stage = BlockStage::kInNode;  // of the block that moved on last, as is the lane
  std::uint8_t lane = 0;
  ipc::WaitReason reason = ipc::WaitReason::kNone;
  std::uint64_t reason_argument = 0;
  std::optional<Failure> failure;
  // A plan's block has the plan it belongs to, its place there, and the iteration it moves.
  std::shared_ptr<const WirePlan> plan;  // held by what is under way, and by Gradients
  std::uint32_t index = 0;
  std::uint64_t iteration = 0;
  bool verified = false;  // its blocks have the stage kVerify
  // The send of a pair is on another node.
  bool comes = false;
  // It only copies, and goes in the class of such operations.
  bool copies = false;
  // So many blocks of a send are waited for on its receiver's node.
  std::uint64_t blocks_allowed = UINT64_MAX;

  bool open() const { return state != State::kFree && state != State::kTombstone; }
  // Ready, with nothing of it in the queue or on a lane, and nothing to come.
  bool moved() const { return blocks_open == 0 && (failure || blocks_ended == blocks_count); }
  bool planned() const { return plan != nullptr; }
  bool paired() const { return TrafficClassOf(spec.sequence) == schedule::TrafficClass::kPaired; }
  schedule::TrafficClass traffic_class() const {
    if (copies) return schedule::TrafficClass::kCopied;
    return comes ? schedule::TrafficClass::kReceived : TrafficClassOf(spec.sequence);
  }
  // Blocks that may be made so far.
  std::uint64_t blocks_due() const { return std::min(blocks_count, blocks_allowed); }
  // As people read it: the pair's number, or the operation's.
  std::uint64_t number() const { return paired() ? PairNumber(spec.sequence) : spec.sequence; }
  // What its block `block` is called on every node.
  BlockName NameOf(const Block& block) const {
    if (planned()) return {.planned = true, .number = iteration, .block = index};
    return {.planned = false, .number = spec.sequence, .block = block.index};
  }
  const WireBlock& wire() const { return plan->blocks[index]; }
};

}  // namespace headrace::service
