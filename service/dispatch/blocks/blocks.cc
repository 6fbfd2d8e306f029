#include "service/dispatch/blocks/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/blocks/cut.h"
#include "service/dispatch/blocks/transfers.h"

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
// Blocks of the job's pool that its pairs have at most, so that they never keep its other blocks
// from being made.
constexpr std::size_t kPairBlocksMax = kBlocksMax / 2;

}  // namespace

Blocks::Blocks(Lanes& lanes, BoardWriter& board, Recorder& recorder,
               Outgoing<MappingMessage>& mapping)
    : lanes_(lanes), queue_(lanes.Terms()), board_(board), recorder_(recorder), mapping_(mapping) {}

void Blocks::RemoveJob(Job& job) {
  queue_.RemoveJob(job.id());
  for (Job::GpuScratch& order : job.gpu_scratch) {
    for (Scratch& scratch : order) {
      std::vector<ScratchMemory> memory = scratch.TakeAll();
      if (memory.empty()) continue;
      mapping_.Send(DiscardScratch{std::move(memory)});
    }
  }
}

void Blocks::Free(Job& job, Block& block) {
  if (block.order() == schedule::Order::kPaired) --job.pairs().blocks_open;
  GiveScratch(job, block);
  job.FreeBlock(block);
}

void Blocks::AskForScratch(Job& job, schedule::Order order) {
  std::int8_t gpu = transport::kHost;  // stands first among the job's scratch
  for (Scratch& scratch : job.gpu_scratch[static_cast<std::size_t>(order)]) {
    const Scratch::Request request = scratch.TakeScratchRequest();
    const std::int8_t wanted = gpu++;
    if (request.place_bytes == 0) continue;
    // Once for each size, which doubles. The blocks wait until it is answered.
    mapping_.Send(MakeScratch{.job = job.id(),
                              .order = order,
                              .gpu = wanted,
                              .place_bytes = request.place_bytes,
                              .places_count = request.places_count});
  }
}

void Blocks::AddScratch(Job& job, ScratchMade made, TimeNs now) {
  job.gpu_scratch[static_cast<std::size_t>(made.order)][static_cast<std::size_t>(made.gpu + 1)].Add(
      made.place_bytes, std::move(made.memory).value());
  Make(job, now);
}

void Blocks::Begin(Job& job, Operation& operation, TimeNs now) {
  operation.state = Operation::State::kWaiting;
  operation.since_ns = now;
  operation.block_bytes = BlockBytes(job, operation, now);
  operation.blocks_count = BlocksCount(operation.spec, job.world_size(), operation.block_bytes);
  operation.verified = job.Verifies(operation);
  auto& making = job.making[static_cast<std::size_t>(operation.order())];
  // Only of pairs, of which there is room for as many as there were open at a time.
  if (making.full()) making.set_capacity(job.pairs().capacity());
  making.push_back(operation.spec.sequence);
  Make(job, now);
}

// On this node the size may be another for each operation: nobody else has to know. A job that is
// alone moves whole operations, which costs less.
std::uint64_t Blocks::BlockBytes(const Job& job, const Operation& operation, TimeNs now) const {
  if (job.nodes() != nullptr) return operation.planned() ? 0 : job.nodes()->block_bytes;
  const std::uint64_t bytes = operation.spec.OnGpu() ? kSharedGpuBlockBytes : kSharedBlockBytes;
  if (operation.spec.Bytes() <= bytes) return 0;
  const bool has_pairs = !operation.paired() && now - job.pairs().moved_ns < kPairsRecent;
  if (!has_pairs && !lanes_.HasOthers(lanes_.InNode(operation), job, now)) return 0;
  const std::uint64_t count = BlocksCount(operation.spec, job.world_size(), bytes);
  return count <= kBlocksPerOperationMax ? bytes : 0;
}

// What one of them lacks room for must not wait for the others.
void Blocks::Make(Job& job, TimeNs now) {
  MakeOf(job, schedule::Order::kPaired, now);
  MakeOf(job, schedule::Order::kPlanned, now);
  MakeOf(job, schedule::Order::kPosted, now);
}

void Blocks::MakeOf(Job& job, schedule::Order order, TimeNs now) {
  auto& making = job.making[static_cast<std::size_t>(order)];
  while (!making.empty()) {
    Operation& operation = job.slot(making.front());
    const bool current =
        operation.spec.sequence == making.front() && operation.open() && !operation.failure;
    if (current && operation.blocks_made < operation.blocks_count) {
      if (!MakeNext(job, operation, now)) return;
      continue;
    }
    making.pop_front();
  }
}

bool Blocks::MakeNext(Job& job, Operation& operation, TimeNs now) {
  if (operation.paired() && job.pairs().blocks_open == kPairBlocksMax) return false;
  Block* const block = job.AllocateBlock();
  if (block == nullptr) return false;
  block->sequence = operation.spec.sequence;
  if (operation.paired()) {
    ++job.pairs().blocks_open;
    job.pairs().moved_ns = now;
  }
  CutBlock(operation.spec, job.world_size(), operation.block_bytes,
           static_cast<std::uint32_t>(operation.blocks_made), *block);
  if (NeedsScratch(job, operation, *block) && !AllocateScratch(job, operation, *block)) {
    const schedule::Order order = block->order();
    Free(job, *block);
    AskForScratch(job, order);
    return false;
  }
  ++operation.blocks_made;
  ++operation.blocks_open;
  Place(job, *block);
  Enter(job, operation, *block, Step::kInNode, now);
  return true;
}

void Blocks::Place(Job& job, Block& block) {
  if (job.nodes() == nullptr) return;
  block.crossing = Crossing::kComes;
  job.crossing[static_cast<std::size_t>(block.order())].push_back(job.PlaceOf(block));
}

void Blocks::Enter(Job& job, Operation& operation, Block& block, Step step, TimeNs now) {
  block.step =
      NextStep(operation.spec, job.nodes(), job.local().size(), step, job.IsRootHere(block));
  if (block.step == Step::kDone && step <= Step::kVerify && operation.verified) {
    block.step = Step::kVerify;
  }
  if (block.step == Step::kDone) {
    --operation.blocks_open;
    ++operation.blocks_ended;
    recorder_.BlockEnded(job, operation, block, nullptr, now);
    return Free(job, block);
  }
  block.parts_open = 0;
  if (block.step != Step::kBetweenNodes) {
    if (block.from_gpus) return PushShares(job, operation, block, now);
    block.parts_count = 1;
    block.parts[0].range = block.range;
    return Push(job, operation, block, 0, lanes_.InNode(operation), now);
  }
  block.parts_count = 0;
  block.crossing = Crossing::kWaits;
  Cross(job, block.order(), now);
}

// Some blocks have no step before this one, and those that have may end it in any order. If they
// entered like that, a lane would carry out a job's blocks in another order than other nodes do,
// and each could wait for what the other one has no credit left for.
void Blocks::Cross(Job& job, schedule::Order order, TimeNs now) {
  auto& places = job.crossing[static_cast<std::size_t>(order)];
  while (!places.empty()) {
    Block& block = job.block(places.front());
    if (block.crossing != Crossing::kWaits) return;
    block.crossing = Crossing::kNone;
    places.pop_front();
    PushShares(job, job.slot(block.sequence), block, now);
  }
}

// Between nodes a lane for each share; inside the node, where shares have scratch on several GPUs,
// all of them on the one lane.
void Blocks::PushShares(Job& job, Operation& operation, Block& block, TimeNs now) {
  std::array<Range, kRailsMax> shares;
  const bool between_nodes = block.step == Step::kBetweenNodes;
  block.parts_count = SharesOf(job, operation, block, shares);
  HR_CHECK(lanes_.first_rail() + block.parts_count <= lanes_.count(), block.parts_count);
  for (std::uint32_t part = 0; part < block.parts_count; ++part) {
    block.parts[part].range = shares[part];
    // What moves nothing still has to meet the other nodes, on one lane.
    if (shares[part].count == 0 && (part > 0 || block.range.count != 0)) continue;
    const auto rail = static_cast<std::uint8_t>(lanes_.first_rail() + part);
    Push(job, operation, block, part, between_nodes ? rail : lanes_.InNode(operation), now);
  }
  operation.since_ns = now;
}

void Blocks::Push(Job& job, Operation& operation, Block& block, std::uint32_t index,
                  std::uint8_t lane, TimeNs now) {
  Part& part = block.parts[index];
  part.state = Part::State::kWaiting;
  part.stage = {.token = StageName{job.id(), job.PlaceOf(block), index}.Pack(),
                .position = block.position(),
                .job = job.id(),
                .order = block.order(),
                .lane = lane,
                .bytes = part.range.count * SizeOf(operation.spec.dtype)};
  part.stage.wire_bytes = lanes_.WireBytes(job, part.stage);
  ++block.parts_open;
  const schedule::Wait wait = queue_.Push(part.stage);
  recorder_.StageQueued(job, block, part, now);
  lanes_.SetChanged(lane);
  operation.step = block.step;
  operation.lane = lane;
  const bool behind = wait.reason == schedule::Wait::Reason::kBehindStage &&
                      SequenceOf(wait.argument) != block.sequence;
  SetReason(job, operation, behind ? ipc::WaitReason::kBehindBlock : ipc::WaitReason::kNone,
            behind ? SequenceOf(wait.argument) : 0);
}

void Blocks::Schedule(Jobs& jobs, TimeNs now) {
  next_time_ = kNever;
  for (std::uint8_t lane = 0; lane < lanes_.count(); ++lane) {
    bool changed = lanes_.TestAndClearChanged(lane);
    while (const std::optional<schedule::Stage> stage = queue_.Pick(lane, now)) {
      Job& job = JobOf(jobs, stage->job);
      const StageName name = StageName::Unpack(stage->token);
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

Job& Blocks::JobOf(Jobs& jobs, JobId id) {
  const auto job =
      std::find_if(jobs.begin(), jobs.end(), [id](const auto& entry) { return entry->id() == id; });
  HR_CHECK(job != jobs.end(), id.value);
  return **job;
}

void Blocks::Start(Job& job, Operation& operation, Block& block, Part& part, TimeNs now) {
  part.state = Part::State::kMoving;
  part.begin_ns = now;
  recorder_.StageBegun(job, block, part, now);
  lanes_.OnStarted(job, part.stage, now);
  if (operation.planned()) NoteBegin(job, operation, now);
  operation.step = block.step;
  operation.lane = part.stage.lane;
  operation.state = Operation::State::kMoving;
  operation.since_ns = now;
  SetReason(job, operation, ipc::WaitReason::kNone, 0);
  lanes_.out(part.stage.lane).Send(StartStage{MakeTransfer(job, operation, block, part)});
}

void Blocks::NoteBegin(Job& job, const Operation& operation, TimeNs now) {
  if (!job.times) return;
  job.times->BlockMoves(now);
  IterationTimes::Span& span = job.times->block(operation.iteration, operation.index);
  if (span.begin_ns == 0) span.begin_ns = now;
}

Blocks::Ended Blocks::StageEnded(Job& job, const transport::Completion& completion, TimeNs now) {
  const StageName name = StageName::Unpack(completion.token);
  Block& block = job.block(name.block);
  Operation& operation = job.slot(block.sequence);
  Part& part = block.parts[name.part];
  HR_CHECK(block.sequence != 0 && part.state == Part::State::kMoving, completion.token);
  Settle(job, operation, block, part, completion, now);
  recorder_.StageEnded(job, block, part, completion.code, now);
  Ended ended{operation, std::nullopt, std::nullopt};
  if (block.step == Step::kVerify && completion.code == Code::kOk) {
    Compare(job, block, completion, ended);
  } else if (completion.code == Code::kOk) {
    // The same bytes pass several steps; people want to know how many there are.
    if (block.step == Step::kBetweenNodes || job.nodes() == nullptr) {
      recorder_.Moved(job, part.stage.bytes);
    }
  } else if (!operation.failure) {
    ended.failure = Failure{
        completion.code,
        fmt::format("lane {} could not move {}: {}", lanes_.Name(part.stage.lane),
                    job.DescribeOperation(operation),
                    completion.cause.empty() ? CodeName(completion.code) : completion.cause)};
  }
  if (--block.parts_open > 0) return ended;
  if (operation.failure || ended.failure) {
    --operation.blocks_open;
    recorder_.BlockEnded(job, operation, block,
                         operation.failure ? &*operation.failure : &*ended.failure, now);
    Free(job, block);
  } else {
    Enter(job, operation, block, static_cast<Step>(static_cast<int>(block.step) + 1), now);
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

void Blocks::Abandon(Job& job, Operation& operation, TimeNs now) {
  if (operation.paired()) {
    // Others may come and go while those before them wait for room.
    auto& making = job.making[static_cast<std::size_t>(schedule::Order::kPaired)];
    making.erase(std::remove(making.begin(), making.end(), operation.spec.sequence), making.end());
  }
  if (operation.blocks_open == 0) return;
  for (Block& block : job.blocks()) {
    if (block.sequence != operation.spec.sequence) continue;
    for (std::uint32_t index = 0; index < block.parts_count; ++index) {
      Part& part = block.parts[index];
      if (part.state == Part::State::kWaiting) {
        Unqueue(job, operation, block, part, now);
      } else if (part.state == Part::State::kMoving) {
        // The lane may be writing results: the ranks are told when it has let go.
        lanes_.out(part.stage.lane).Send(CancelStage{part.stage.token});
      }
    }
    if (block.parts_open > 0) continue;
    --operation.blocks_open;
    recorder_.BlockEnded(job, operation, block, &*operation.failure, now);
    Free(job, block);
  }
}

void Blocks::Settle(Job& job, const Operation& operation, const Block& block, Part& part,
                    const transport::Completion& completion, TimeNs now) {
  part.state = Part::State::kNone;
  if (operation.planned() && job.times) job.times->BlockRests(now);
  queue_.Return(part.stage);
  lanes_.OnEnded(job, operation, block, part, completion, now);
}

void Blocks::Unqueue(Job& job, Operation& operation, Block& block, Part& part, TimeNs now) {
  const bool removed = queue_.Remove(part.stage);
  HR_CHECK(removed, part.stage.token);
  part.state = Part::State::kNone;
  --block.parts_open;
  recorder_.StageDropped(job, block, part, now);
  lanes_.SetChanged(part.stage.lane);
  // All of its job's blocks are given up with it; and pairs, whose numbers are not those of an
  // order, show what they wait for when they come to its head.
  if (operation.planned() || operation.paired()) return;
  // What waited behind it waits for what it waited for.
  const std::uint64_t sequence = operation.spec.sequence;
  for (std::uint64_t later = sequence + 1; later < sequence + kOperationsMax; ++later) {
    Operation& behind = job.slot(later);
    if (behind.state != Operation::State::kWaiting) continue;
    if (behind.reason == ipc::WaitReason::kBehindBlock && behind.reason_argument == sequence) {
      SetReason(job, behind, operation.reason, operation.reason_argument);
    }
    return;
  }
}

void Blocks::SetShare(Job& job, TimeNs now) {
  queue_.SetShare(job.id(), job.share, now);
  for (std::uint8_t lane = 0; lane < lanes_.count(); ++lane) lanes_.SetChanged(lane);
  if (job.nodes() != nullptr) lanes_.SendShare(job);
}

void Blocks::OnStageWaits(Job& job, const StageWaits& message) {
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
