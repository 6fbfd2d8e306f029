#include "service/dispatch/blocks/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/halves.h"
#include "service/dispatch/blocks/cut.h"
#include "service/dispatch/blocks/message_blocks.h"
#include "service/dispatch/blocks/transfers.h"
#include "service/dispatch/job/pair_notices.h"

namespace headrace::service {
namespace {

// While several jobs move on the lane inside the node, operations travel there in blocks of this
// size: another job's small one then waits for one of them, about 0.1 ms, and not for a whole
// model.
constexpr std::uint64_t kSharedBlockBytes = std::uint64_t{1} << 20;
// GPUs sum as much in about that time.
constexpr std::uint64_t kSharedGpuBlockBytes = std::uint64_t{32} << 20;
// A job that sent something within this is likely to send again: its bulk leaves gaps for that.
constexpr TimeNs kPairsRecent = kSecond;
// Blocks of the job's pool that pairs, what comes from other nodes' sends, and copies have at most,
// each of these classes, so that they never keep each other or other blocks from being made.
constexpr std::size_t kBlocksOfClassMax = kBlocksMax / 4;
// Blocks that are left to each of these classes, of however many there are to make, where others
// may wait for what another node posts after such a block. A plan has few open.
constexpr std::size_t kBlocksLeft = kBlocksMax / 24;
constexpr std::array kClassesWithBlocksLeft = {schedule::TrafficClass::kReceived,
                                               schedule::TrafficClass::kPaired,
                                               schedule::TrafficClass::kCopied};

bool HasRoomFor(const Job& job, schedule::TrafficClass traffic_class) {
  if (traffic_class == schedule::TrafficClass::kPlanned) return true;
  const bool limited = traffic_class != schedule::TrafficClass::kPosted;
  if (limited && job.BlocksIn(traffic_class) >= kBlocksOfClassMax) return false;
  if (job.nodes() == nullptr || (limited && job.BlocksIn(traffic_class) < kBlocksLeft)) return true;
  std::size_t left = 0;
  for (const schedule::TrafficClass each : kClassesWithBlocksLeft) {
    left += kBlocksLeft - std::min(kBlocksLeft, job.BlocksIn(each));
  }
  return job.free_blocks_count() > left;
}

// Whether the operation goes in the class of those that only copy. NCCL takes all transfers of a
// group in one order, which must be that of their numbers.
bool Copies(const Job& job, const Operation& operation) {
  const Collective kind = operation.spec.kind;
  if (operation.planned() || operation.paired()) return false;
  if (Reduces(kind) || kind == Collective::kBarrier) return false;
  return job.nodes() == nullptr || job.nodes()->nccl_lanes == 0;
}

// Whether the block has no part in what nodes carry out together.
bool StaysHere(Job& job, const Operation& operation, const Block& block) {
  if (MovesInMessages(operation.spec.kind)) {
    return job.IsHere(block.source) && job.IsHere(block.target);
  }
  return operation.paired() && job.pairs().at(operation.spec.sequence).away == Away::kNo;
}

std::optional<PartBlock> NextPart(const Job& job, const Operation& operation, std::uint32_t index) {
  return NextPartBlock(PartsOf(job, operation.spec), operation.spec.dtype, operation.block_bytes,
                       job.nodes() != nullptr, index);
}

Away AwayOf(Job& job, const Operation& operation) {
  return operation.paired() ? job.pairs().at(operation.spec.sequence).away : Away::kNo;
}

}  // namespace

Blocks::Blocks(Lanes& lanes, BoardWriter& board, Recorder& recorder, WaitReasons& wait_reasons,
               Outgoing<RpcMessage>& rpc, Outgoing<MappingMessage>& mapping)
    : lanes_(lanes),
      queue_(lanes.Terms()),
      board_(board),
      recorder_(recorder),
      wait_reasons_(wait_reasons),
      mapping_(mapping),
      scratch_(lanes, rpc, mapping) {}

void Blocks::RemoveJob(Job& job) {
  queue_.RemoveJob(job.id());
  scratch_.Discard(job);
  if (job.residuals.OnGpus() == nullptr) return;
  mapping_.Send(
      DiscardResiduals{std::move(job.residuals.own), job.residuals.PopPinned(), job.owner_uid()});
}

void Blocks::Free(Job& job, Block& block) {
  HR_CHECK(block.sequence != 0 && block.parts_open == 0, block.sequence, block.parts_open);
  ReturnScratch(job, block);
  job.FreeBlock(block);
}

void Blocks::AddScratch(Job& job, ScratchMade made, TimeNs now) {
  ScratchRequests::Add(job, std::move(made));
  Make(job, now);
}

void Blocks::Extend(Job& job, Operation& operation, std::uint64_t blocks_allowed, TimeNs now) {
  const bool parked = operation.blocks_made == operation.blocks_allowed;
  operation.blocks_allowed = blocks_allowed;
  if (!parked) return;
  MakeMore(job, operation);
  Make(job, now);
}

void Blocks::MakeMore(Job& job, const Operation& operation) {
  auto& making = job.making[static_cast<std::size_t>(operation.traffic_class())];
  if (making.full()) {
    // What failed before its turn leaves its number behind, and its slot to a later operation.
    DropEnded(job, making);
    // Only of pairs, of which there is room for as many as there were open at a time; one that may
    // go on while it still stands behind others is there twice. It grows before it is full again,
    // or each later one would look through all of them.
    const std::size_t most = 2 * job.pairs().capacity();
    if (operation.paired() && 2 * making.size() >= making.capacity() && making.capacity() < most) {
      making.set_capacity(most);
    }
  }
  HR_CHECK(!making.full(), operation.spec.sequence, making.size());
  making.push_back(operation.spec.sequence);
}

void Blocks::Begin(Job& job, Operation& operation, TimeNs now) {
  HR_CHECK(operation.open() && !operation.failure && operation.blocks_made == 0,
           operation.spec.sequence, operation.blocks_made);
  operation.state = Operation::State::kWaiting;
  operation.since_ns = now;
  operation.copies = Copies(job, operation);
  operation.block_bytes = BlockBytes(job, operation, now);
  operation.blocks_count = CountBlocks(job, operation);
  operation.verified = job.Verifies(operation);
  MakeMore(job, operation);
  Make(job, now);
}

std::uint64_t Blocks::CountBlocks(const Job& job, const Operation& operation) {
  const OperationSpec& spec = operation.spec;
  if (MovesInMessages(spec.kind)) return MessageBlocksCount(job, spec, operation.block_bytes);
  if (!spec.uneven) return BlocksCount(spec, job.world_size(), operation.block_bytes);
  std::uint64_t count = 0;
  for (auto block = NextPart(job, operation, 0); block;
       block = NextPart(job, operation, block->index + 1)) {
    ++count;
  }
  return count;
}

// On this node the size may be another for each operation: nobody else has to know. A job that is
// alone moves whole operations, which costs less.
std::uint64_t Blocks::BlockBytes(const Job& job, const Operation& operation, TimeNs now) const {
  const bool in_messages = MovesInMessages(operation.spec.kind);
  if (job.nodes() != nullptr && !in_messages) {
    return operation.planned() ? 0 : BlockBytesBetweenNodes(operation.spec, *job.nodes());
  }
  const std::uint64_t bytes = operation.spec.OnGpu() ? kSharedGpuBlockBytes : kSharedBlockBytes;
  const std::uint64_t size =
      in_messages ? LargestMessage(job, operation.spec) : operation.spec.Bytes();
  if (size <= bytes) return 0;
  const bool has_pairs = !operation.paired() && now - job.pairs().moved_ns < kPairsRecent;
  if (!has_pairs && !lanes_.HasOthers(lanes_.InNode(operation), job, now)) return 0;
  if (in_messages) return bytes;
  const std::uint64_t count = BlocksCount(operation.spec, job.world_size(), bytes);
  return count <= kBlocksPerOperationMax ? bytes : 0;
}

// Each class in turn, so that one without room does not keep the others waiting.
void Blocks::Make(Job& job, TimeNs now) {
  MakeOf(job, schedule::TrafficClass::kReceived, now);
  MakeOf(job, schedule::TrafficClass::kPaired, now);
  MakeOf(job, schedule::TrafficClass::kCopied, now);
  MakeOf(job, schedule::TrafficClass::kPlanned, now);
  MakeOf(job, schedule::TrafficClass::kPosted, now);
}

void Blocks::MakeOf(Job& job, schedule::TrafficClass traffic_class, TimeNs now) {
  auto& making = job.making[static_cast<std::size_t>(traffic_class)];
  while (!making.empty()) {
    if (HasBlocksToMake(job, making.front())) {
      Operation& operation = job.slot(making.front());
      if (MakeNext(job, operation, now)) continue;
      if (operation.blocks_open == 0 && operation.reason != ipc::WaitReason::kNoRoom) {
        wait_reasons_.Set(job, operation, ipc::WaitReason::kNoRoom, 0);
      }
      return;
    }
    making.pop_front();
  }
}

bool Blocks::HasBlocksToMake(Job& job, std::uint64_t sequence) {
  const Operation& operation = job.slot(sequence);
  return operation.spec.sequence == sequence && operation.open() && !operation.failure &&
         operation.blocks_made < operation.blocks_due();
}

void Blocks::DropEnded(Job& job, boost::circular_buffer<std::uint64_t>& making) {
  const auto ended = [&job](std::uint64_t sequence) { return !HasBlocksToMake(job, sequence); };
  making.erase(std::remove_if(making.begin(), making.end(), ended), making.end());
}

bool Blocks::MakeNext(Job& job, Operation& operation, TimeNs now) {
  HR_CHECK(operation.blocks_ended + operation.blocks_open <= operation.blocks_made,
           operation.spec.sequence, operation.blocks_ended, operation.blocks_open);
  if (!HasRoomFor(job, operation.traffic_class())) return false;
  Block* const block = job.AllocateBlock(operation);
  if (block == nullptr) return false;
  if (operation.paired()) job.pairs().moved_ns = now;
  Cut(job, operation, *block);
  if (NeedsScratch(job, operation, *block) && !AllocateScratch(job, operation, *block)) {
    const schedule::TrafficClass traffic_class = block->traffic_class();
    Free(job, *block);
    scratch_.Ask(job, traffic_class);
    return false;
  }
  scratch_.BookHostScratch(job);
  ++operation.blocks_made;
  ++operation.blocks_open;
  operation.next_index = block->index + 1;
  if (!StaysHere(job, operation, *block)) Place(job, *block);
  Enter(job, operation, *block, BlockStage::kInNode, now);
  return true;
}

void Blocks::Cut(const Job& job, Operation& operation, Block& block) {
  if (operation.spec.uneven) {
    const auto part = NextPart(job, operation, operation.next_index);
    HR_CHECK(part.has_value(), operation.spec.sequence, operation.blocks_made);
    block.index = part->index;
    block.root = part->root;
    block.range = part->range;
    return;
  }
  if (!MovesInMessages(operation.spec.kind)) {
    return CutBlock(operation.spec, job.world_size(), operation.block_bytes,
                    static_cast<std::uint32_t>(operation.blocks_made), block);
  }
  const auto message =
      NextMessageBlock(job, operation.spec, operation.block_bytes, operation.next_index);
  HR_CHECK(message.has_value(), operation.spec.sequence, operation.blocks_made);
  block.index = message->index;
  block.source = message->source;
  block.target = message->target;
  block.range = message->range;
}

void Blocks::Place(Job& job, Block& block) {
  if (job.nodes() == nullptr || schedule::IsOfPairs(block.traffic_class())) return;
  block.crossing = Crossing::kComes;
  HR_CHECK(!job.crossing[static_cast<std::size_t>(block.traffic_class())].full(), block.sequence);
  job.crossing[static_cast<std::size_t>(block.traffic_class())].push_back(job.PlaceOf(block));
}

void Blocks::Enter(Job& job, Operation& operation, Block& block, BlockStage stage, TimeNs now) {
  HR_CHECK(block.parts_open == 0 && operation.blocks_open > 0, block.sequence, block.parts_open);
  if (MovesInMessages(operation.spec.kind)) {
    block.stage = NextMessageStage(!StaysHere(job, operation, block), stage);
  } else if (operation.paired()) {
    block.stage = NextPairStage(AwayOf(job, operation), operation.spec.OnGpu(), stage);
  } else {
    block.stage =
        NextStage(operation.spec, job.nodes(), job.local().size(), stage, job.IsRootHere(block));
  }
  if (block.stage == BlockStage::kDone && stage <= BlockStage::kVerify && operation.verified) {
    block.stage = BlockStage::kVerify;
  }
  if (block.stage == BlockStage::kDone) {
    --operation.blocks_open;
    ++operation.blocks_ended;
    recorder_.BlockEnded(job, operation, block, nullptr, now);
    return Free(job, block);
  }
  block.parts_open = 0;
  if (block.stage != BlockStage::kBetweenNodes) {
    if (block.from_gpus) return PushShares(job, operation, block, now);
    block.parts_count = 1;
    block.parts[0].range = block.range;
    return Push(job, operation, block, 0, lanes_.InNode(operation), now);
  }
  block.parts_count = 0;
  if (operation.paired()) return PushShares(job, operation, block, now);
  block.crossing = Crossing::kWaits;
  Cross(job, block.traffic_class(), now);
  if (block.crossing == Crossing::kWaits) HoldBack(job, operation, block, now);
}

// Nothing of it moves until blocks before it have come so far.
void Blocks::HoldBack(Job& job, Operation& operation, const Block& block, TimeNs now) {
  const auto& places = job.crossing[static_cast<std::size_t>(block.traffic_class())];
  const std::uint64_t first = job.block(places.front()).sequence;
  if (operation.parts_moving > 0 || first == block.sequence) return;
  operation.state = Operation::State::kWaiting;
  operation.since_ns = now;
  operation.stage = block.stage;
  operation.lane = static_cast<std::uint8_t>(lanes_.first_rail());
  wait_reasons_.Set(job, operation, ipc::WaitReason::kBehindBlock, first);
}

// Some blocks have no stage before this one, and those that have may end it in any order. If they
// entered like that, a lane would carry out a job's blocks in another order than other nodes do,
// and each could wait for what the other one has no credit left for.
void Blocks::Cross(Job& job, schedule::TrafficClass traffic_class, TimeNs now) {
  auto& places = job.crossing[static_cast<std::size_t>(traffic_class)];
  while (!places.empty()) {
    Block& block = job.block(places.front());
    if (block.crossing != Crossing::kWaits) return;
    block.crossing = Crossing::kNone;
    places.pop_front();
    HR_CHECK(block.sequence != 0 && block.stage == BlockStage::kBetweenNodes, block.sequence);
    PushShares(job, job.slot(block.sequence), block, now);
  }
}

// Between nodes a lane for each share; inside the node, where shares have scratch on several GPUs,
// all of them on the one lane.
void Blocks::PushShares(Job& job, Operation& operation, Block& block, TimeNs now) {
  std::array<Range, kRailsMax> shares;
  const bool between_nodes = block.stage == BlockStage::kBetweenNodes;
  block.parts_count = SharesOf(job, operation, block, shares);
  HR_CHECK(lanes_.first_rail() + block.parts_count <= lanes_.count(), block.parts_count);
  for (std::uint32_t part = 0; part < block.parts_count; ++part) {
    block.parts[part].range = shares[part];
    // What moves nothing still has to meet the other nodes, on one lane.
    if (shares[part].count == 0 && (part > 0 || block.range.count != 0)) continue;
    const auto rail = static_cast<std::uint8_t>(lanes_.first_rail() + part);
    Push(job, operation, block, part, between_nodes ? rail : lanes_.InNode(operation), now);
  }
  block.parts_to_stand = block.parts_open;
  operation.since_ns = now;
}

void Blocks::Push(Job& job, Operation& operation, Block& block, std::uint32_t index,
                  std::uint8_t lane, TimeNs now) {
  BlockPart& part = block.parts[index];
  part.state = BlockPart::State::kWaiting;
  HR_CHECK(lane < lanes_.count() && block.parts_open < block.parts_count, lane, block.parts_open);
  part.queued = {.token = StageToken{job.id(), job.PlaceOf(block), index}.Pack(),
                 .position = block.position(),
                 .job = job.id(),
                 .traffic_class = block.traffic_class(),
                 .lane = lane,
                 .bytes = part.range.count * SizeOf(operation.spec.dtype)};
  const bool in_messages = MovesInMessages(operation.spec.kind);
  part.queued.wire_bytes = in_messages && !job.IsHere(block.source)
                               ? 0
                               : lanes_.WireBytes(job, part.queued, in_messages);
  if (IsHalf(operation.spec.half)) part.queued.wire_bytes /= 2;
  ++block.parts_open;
  const schedule::Wait wait = queue_.Push(part.queued);
  recorder_.StageQueued(job, block, part, now);
  lanes_.SetChanged(lane);
  operation.stage = block.stage;
  operation.lane = lane;
  if (operation.parts_moving == 0 && operation.state != Operation::State::kWaiting) {
    operation.state = Operation::State::kWaiting;
    operation.since_ns = now;
  }
  const bool behind = wait.reason == schedule::Wait::Reason::kBehindStage &&
                      SequenceOf(wait.argument) != block.sequence;
  wait_reasons_.Set(job, operation, behind ? ipc::WaitReason::kBehindBlock : ipc::WaitReason::kNone,
                    behind ? SequenceOf(wait.argument) : 0);
}

void Blocks::Schedule(Jobs& jobs, TimeNs now) {
  next_time_ = kNever;
  for (std::uint8_t lane = 0; lane < lanes_.count(); ++lane) {
    bool changed = lanes_.TestAndClearChanged(lane);
    while (const std::optional<schedule::QueuedStage> stage = queue_.Pick(lane, now)) {
      Job& job = JobOf(jobs, stage->job);
      const StageToken name = StageToken::Unpack(stage->token);
      HR_CHECK(name.block < kBlocksMax && name.part < kRailsMax, stage->token);
      Block& block = job.block(name.block);
      Start(job, job.slot(block.sequence), block, block.parts[name.part], now);
      changed = true;
    }
    next_time_ = std::min(next_time_, queue_.NextTime(lane));
    if (!changed) continue;
    ExplainHeads(jobs, lane, now);
    lanes_.ShowQueued(lane, queue_.Waiting(lane));
  }
}

void Blocks::ExplainHeads(Jobs& jobs, std::uint8_t lane, TimeNs now) {
  for (const auto& head : queue_.ExplainHeads(lane, now)) {
    wait_reasons_.ExplainHead(JobOf(jobs, head.stage.job), head);
  }
}

Job& Blocks::JobOf(Jobs& jobs, JobId id) {
  const auto job =
      std::find_if(jobs.begin(), jobs.end(), [id](const auto& entry) { return entry->id() == id; });
  HR_CHECK(job != jobs.end(), id.value);
  return **job;
}

void Blocks::Start(Job& job, Operation& operation, Block& block, BlockPart& part, TimeNs now) {
  HR_CHECK(block.sequence != 0 && operation.spec.sequence == block.sequence, block.sequence,
           operation.spec.sequence);
  HR_CHECK(part.state == BlockPart::State::kWaiting && !operation.failure, part.queued.token);
  part.state = BlockPart::State::kMoving;
  ++operation.parts_moving;
  part.begin_ns = now;
  recorder_.StageBegun(job, block, part, now);
  lanes_.OnStarted(job, part.queued, now);
  if (operation.planned()) NoteBegin(job, operation, now);
  operation.stage = block.stage;
  operation.lane = part.queued.lane;
  operation.state = Operation::State::kMoving;
  operation.since_ns = now;
  wait_reasons_.Set(job, operation, ipc::WaitReason::kNone, 0);
  lanes_.out(part.queued.lane).Send(StartStage{MakeTransfer(job, operation, block, part)});
}

void Blocks::NoteBegin(Job& job, const Operation& operation, TimeNs now) {
  if (!job.measured.times) return;
  job.measured.times->OnBlockStarted(now);
  IterationTimes::BlockTimes& span =
      job.measured.times->block(operation.iteration, operation.index);
  if (span.begin_ns == 0) span.begin_ns = now;
}

Blocks::Ended Blocks::StageEnded(Job& job, const transport::Completion& completion, TimeNs now) {
  const StageToken name = StageToken::Unpack(completion.token);
  Block& block = job.block(name.block);
  Operation& operation = job.slot(block.sequence);
  BlockPart& part = block.parts[name.part];
  HR_CHECK(block.sequence != 0 && part.state == BlockPart::State::kMoving, completion.token);
  HR_CHECK(operation.spec.sequence == block.sequence && block.parts_open > 0, completion.token,
           operation.spec.sequence);
  Settle(job, operation, block, part, completion, now);
  recorder_.StageEnded(job, block, part, completion.code, now);
  recorder_.Encoded(job, operation, block, completion.codec);
  Ended ended{operation, std::nullopt, std::nullopt};
  if (block.stage == BlockStage::kVerify && completion.code == Code::kOk) {
    Compare(job, block, completion, ended);
  } else if (CameEarly(job, block) && completion.code == Code::kOk && !operation.failure) {
    ended.failure =
        Failure{Code::kCorrupt,
                fmt::format("node {} sent bytes of {} before it might: install the same release on "
                            "all nodes",
                            job.nodes()->nodes[job.pairs().at(block.sequence).node].name,
                            job.DescribeOperation(operation))};
  } else if (completion.code == Code::kOk) {
    // The same bytes pass several stages; people want to know how many there are.
    const bool stays = StaysHere(job, operation, block);
    const bool scatters = operation.spec.half == Collective::kReduceScatter;
    const bool counts = block.stage == BlockStage::kBetweenNodes || job.nodes() == nullptr || stays;
    if (counts && !scatters) {
      recorder_.Moved(job, part.queued.bytes);
    }
  } else if (!operation.failure) {
    ended.failure = Failure{
        completion.code,
        fmt::format("lane {} could not move {}: {}", lanes_.Name(part.queued.lane),
                    job.DescribeOperation(operation),
                    completion.cause.empty() ? CodeName(completion.code) : completion.cause)};
  }
  if (--block.parts_open > 0) return ended;
  HR_CHECK(operation.blocks_open > 0, completion.token);
  if (operation.failure || ended.failure) {
    --operation.blocks_open;
    recorder_.BlockEnded(job, operation, block,
                         operation.failure ? &*operation.failure : &*ended.failure, now);
    Free(job, block);
  } else {
    Enter(job, operation, block, static_cast<BlockStage>(static_cast<int>(block.stage) + 1), now);
  }
  Make(job, now);
  return ended;
}

// What the ranks of this node have got; other nodes are compared by the job's leader.
void Blocks::Compare(const Job& job, const Block& block, const transport::Completion& completion,
                     Ended& ended) {
  ++board_.counters.blocks_verified;
  if (completion.differing == 0) {
    ended.hash = BlockHash{ended.operation.NameOf(block), completion.digest};
  } else if (!ended.operation.failure) {
    ended.failure = Failure{Code::kCorrupt,
                            job.DescribeDifference(ended.operation, block, completion.differing)};
  }
}

// Whether nobody was to send it yet. That it may go is counted before the notice of it leaves.
bool Blocks::CameEarly(Job& job, const Block& block) {
  return block.comes && block.stage == BlockStage::kBetweenNodes &&
         block.index >= job.pairs().at(block.sequence).blocks_released;
}

// Its number stays among those that are to be cut, which costs nothing: see MakeMore.
void Blocks::Abandon(Job& job, Operation& operation, TimeNs now) {
  if (operation.blocks_open == 0) return;
  for (Block& block : job.blocks()) {
    if (block.sequence != operation.spec.sequence) continue;
    for (std::uint32_t index = 0; index < block.parts_count; ++index) {
      BlockPart& part = block.parts[index];
      if (part.state == BlockPart::State::kWaiting) {
        Unqueue(job, operation, block, part, now);
      } else if (part.state == BlockPart::State::kMoving) {
        // The lane may be writing results: the ranks get their completions when it has let go.
        lanes_.out(part.queued.lane).Send(CancelStage{part.queued.token});
      }
    }
    if (block.parts_open > 0) continue;
    --operation.blocks_open;
    recorder_.BlockEnded(job, operation, block, &*operation.failure, now);
    Free(job, block);
  }
}

void Blocks::Settle(Job& job, Operation& operation, const Block& block, BlockPart& part,
                    const transport::Completion& completion, TimeNs now) {
  part.state = BlockPart::State::kNone;
  HR_CHECK(operation.parts_moving > 0, operation.spec.sequence);
  --operation.parts_moving;
  if (operation.planned() && job.measured.times) job.measured.times->OnBlockIdle(now);
  queue_.Return(part.queued);
  lanes_.OnEnded(job, operation, block, part, completion, now);
}

void Blocks::Unqueue(Job& job, Operation& operation, Block& block, BlockPart& part, TimeNs now) {
  const bool removed = queue_.Remove(part.queued);
  HR_CHECK(removed, part.queued.token);
  HR_CHECK(block.parts_open > 0, part.queued.token);
  part.state = BlockPart::State::kNone;
  --block.parts_open;
  recorder_.StageDropped(job, block, part, now);
  lanes_.SetChanged(part.queued.lane);
  // All of its job's blocks are given up with it; and pairs, whose numbers are not those of an
  // order, show what they wait for when they come to its head.
  if (operation.planned() || operation.paired()) return;
  // What waited behind it waits for what it waited for.
  const std::uint64_t sequence = operation.spec.sequence;
  for (std::uint64_t later = sequence + 1; later < sequence + kOperationsMax; ++later) {
    Operation& behind = job.slot(later);
    if (behind.state != Operation::State::kWaiting) continue;
    if (behind.traffic_class() != operation.traffic_class()) continue;
    if (behind.reason == ipc::WaitReason::kBehindBlock && behind.reason_argument == sequence) {
      wait_reasons_.Set(job, behind, operation.reason, operation.reason_argument);
    }
    return;
  }
}

void Blocks::SetShare(Job& job, TimeNs now) {
  queue_.SetShare(job.id(), job.in_force.share, now);
  for (std::uint8_t lane = 0; lane < lanes_.count(); ++lane) lanes_.SetChanged(lane);
  if (job.nodes() != nullptr) lanes_.SendShare(job);
}

void Blocks::OnReceivePosted(Job& job, const ReceivePosted& message) {
  const StageToken name = StageToken::Unpack(message.token);
  if (name.block >= kBlocksMax || name.part >= kRailsMax) return;
  Block& block = job.block(name.block);
  if (block.sequence == 0 || !block.comes ||
      block.parts[name.part].state != BlockPart::State::kMoving) {
    return;
  }
  Operation& operation = job.slot(block.sequence);
  if (operation.failure || ++block.parts_standing != block.parts_to_stand) return;
  OnBlockStands(job, job.pairs().at(block.sequence), block.index);
}

}  // namespace headrace::service
