#include "service/dispatch/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/dispatch/cut.h"
#include "service/dispatch/rows.h"
#include "transport/probe/probe.h"

namespace headrace::service {
namespace {

// While several jobs move on the lane inside the node, operations travel there in blocks of this
// size: another job's small one then waits for one of them, about 0.1 ms, and not for a whole
// model.
constexpr std::uint64_t kSharedBlockBytes = std::uint64_t{1} << 20;
// GPUs sum as much in about that time.
constexpr std::uint64_t kSharedGpuBlockBytes = std::uint64_t{32} << 20;

std::vector<schedule::LaneTerms> Terms(const std::vector<LanePort>& lanes) {
  std::vector<schedule::LaneTerms> terms;
  for (const LanePort& lane : lanes) {
    // Only stages inside the node wait for nobody.
    terms.emplace_back(lane.credit_bytes, lane.place != LanePlace::kBetweenNodes);
  }
  return terms;
}

}  // namespace

Blocks::Blocks(std::vector<LanePort> lanes, BoardWriter& board, Recorder& recorder,
               Outgoing<MappingMessage>& mapping)
    : first_rail_(lanes.size()),
      queue_(Terms(lanes)),
      board_(board),
      recorder_(recorder),
      mapping_(mapping) {
  for (LanePort& port : lanes) {
    const auto index = static_cast<std::uint8_t>(lanes_.size());
    const bool rail = port.place == LanePlace::kBetweenNodes;
    HR_CHECK(rail || first_rail_ == lanes.size(), port.name);
    if (rail) first_rail_ = std::min<std::size_t>(first_rail_, index);
    if (port.place == LanePlace::kInNode) in_node_ = index;
    if (port.place == LanePlace::kInNodeOnGpus) on_gpus_ = index;
    LaneState lane{
        .out = Outgoing<LaneMessage>(*port.door), .port = std::move(port), .company = {}};
    lane.row.in_use = 1;
    lane.row.threads = lane.port.threads;
    lane.row.credit_bytes = lane.port.credit_bytes;
    SetBusy(lane, 0);
    ipc::SetText(lane.row.name, lane.port.name);
    ipc::SetText(lane.row.transport, lane.port.transport);
    lanes_.push_back(std::move(lane));
    ShowLane(index);
  }
}

// With a stage on it, a lane between nodes may just wait for another node.
void Blocks::SetBusy(LaneState& lane, TimeNs busy_ns) {
  const LanePort& port = lane.port;
  lane.busy_ns = busy_ns;
  const bool is_known = port.measures_flow || port.place != LanePlace::kBetweenNodes;
  lane.row.busy_ns = is_known ? busy_ns : ipc::kTimeUnknown;
}

std::uint8_t Blocks::LaneInNode(const Operation& operation) const {
  if (!operation.shape.OnGpu()) return in_node_;
  // No GPU memory is registered where no lane takes it.
  HR_CHECK(on_gpus_.has_value(), operation.shape.sequence);
  return *on_gpus_;
}

std::uint64_t Blocks::WireBytes(const Job& job, const schedule::Stage& stage) const {
  if (!IsBetweenNodes(stage.lane)) return stage.bytes;
  const auto members = static_cast<std::uint32_t>(job.nodes()->data_nodes_count());
  return static_cast<std::uint64_t>(
      transport::BytesSent(members, job.nodes()->servers_count, static_cast<double>(stage.bytes)));
}

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

void Blocks::AskForScratch(Job& job, schedule::Order order) {
  std::int8_t gpu = transport::kHost;  // stands first among the job's scratch
  for (Scratch& scratch : job.gpu_scratch[static_cast<std::size_t>(order)]) {
    const Scratch::Wish wish = scratch.TakeWish();
    const std::int8_t wanted = gpu++;
    if (wish.place_bytes == 0) continue;
    // Once for each size, which doubles. The blocks wait until it is answered.
    mapping_.Send(MakeScratch{.job = job.id(),
                              .order = order,
                              .gpu = wanted,
                              .place_bytes = wish.place_bytes,
                              .places_count = wish.places_count});
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
  operation.blocks_count = BlocksCount(operation.shape, job.world_size(), operation.block_bytes);
  operation.verified = job.Verifies(operation);
  job.making[static_cast<std::size_t>(operation.order())].push_back(operation.shape.sequence);
  Make(job, now);
}

// On this node the size may be another for each operation: nobody else has to know. A job that is
// alone moves whole operations, which costs less.
std::uint64_t Blocks::BlockBytes(const Job& job, const Operation& operation, TimeNs now) const {
  if (job.nodes() != nullptr) return operation.planned() ? 0 : job.nodes()->block_bytes;
  const std::uint64_t bytes = operation.shape.OnGpu() ? kSharedGpuBlockBytes : kSharedBlockBytes;
  if (operation.shape.Bytes() <= bytes) return 0;
  const Company& company = lanes_[LaneInNode(operation)].company;
  if (!company.Has(job.id(), job.share.priority, now)) return 0;
  const std::uint64_t count = BlocksCount(operation.shape, job.world_size(), bytes);
  return count <= kBlocksPerOperationMax ? bytes : 0;
}

// What the plan lacks room for must not wait for operations, nor they for it.
void Blocks::Make(Job& job, TimeNs now) {
  MakeOf(job, schedule::Order::kPlanned, now);
  MakeOf(job, schedule::Order::kPosted, now);
}

void Blocks::MakeOf(Job& job, schedule::Order order, TimeNs now) {
  auto& making = job.making[static_cast<std::size_t>(order)];
  while (!making.empty()) {
    Operation& operation = job.slot(making.front());
    const bool current =
        operation.shape.sequence == making.front() && operation.open() && !operation.failure;
    if (current && operation.blocks_made < operation.blocks_count) {
      if (!MakeNext(job, operation, now)) return;
      continue;
    }
    making.pop_front();
  }
}

bool Blocks::MakeNext(Job& job, Operation& operation, TimeNs now) {
  Block* const block = job.TakeBlock();
  if (block == nullptr) return false;
  block->sequence = operation.shape.sequence;
  CutBlock(operation.shape, job.world_size(), operation.block_bytes,
           static_cast<std::uint32_t>(operation.blocks_made), *block);
  if (job.NeedsScratch(operation, *block) && !job.TakeScratch(operation, *block)) {
    const schedule::Order order = block->order();
    job.FreeBlock(*block);
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
      NextStep(operation.shape, job.nodes(), job.local().size(), step, job.IsRootHere(block));
  if (block.step == Step::kDone && step <= Step::kVerify && operation.verified) {
    block.step = Step::kVerify;
  }
  if (block.step == Step::kDone) {
    --operation.blocks_open;
    ++operation.blocks_ended;
    recorder_.BlockEnded(job, operation, block, nullptr, now);
    return job.FreeBlock(block);
  }
  block.parts_open = 0;
  if (block.step != Step::kBetweenNodes) {
    if (block.from_gpus) return PushShares(job, operation, block, now);
    block.parts_count = 1;
    block.parts[0].range = block.range;
    return Push(job, operation, block, 0, LaneInNode(operation), now);
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
  block.parts_count = job.SharesOf(operation, block, shares);
  HR_CHECK(first_rail_ + block.parts_count <= lanes_.size(), block.parts_count);
  for (std::uint32_t part = 0; part < block.parts_count; ++part) {
    block.parts[part].range = shares[part];
    // What moves nothing still has to meet the other nodes, on one lane.
    if (shares[part].count == 0 && (part > 0 || block.range.count != 0)) continue;
    const auto rail = static_cast<std::uint8_t>(first_rail_ + part);
    Push(job, operation, block, part, between_nodes ? rail : LaneInNode(operation), now);
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
                .bytes = part.range.count * SizeOf(operation.shape.dtype)};
  part.stage.wire_bytes = WireBytes(job, part.stage);
  ++block.parts_open;
  const schedule::Wait wait = queue_.Push(part.stage);
  recorder_.StageQueued(job, part, now);
  lanes_[lane].queue_changed = true;
  operation.step = block.step;
  operation.lane = lane;
  const bool behind = wait.reason == schedule::Wait::Reason::kBehindStage &&
                      SequenceOf(wait.argument) != block.sequence;
  SetReason(job, operation, behind ? ipc::WaitReason::kBehindBlock : ipc::WaitReason::kNone,
            behind ? SequenceOf(wait.argument) : 0);
}

void Blocks::Schedule(Jobs& jobs, TimeNs now) {
  next_time_ = kNever;
  for (std::uint8_t lane = 0; lane < lanes_.size(); ++lane) {
    bool changed = std::exchange(lanes_[lane].queue_changed, false);
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
    ShowLane(lane);
  }
}

Job& Blocks::JobOf(Jobs& jobs, JobId id) {
  const auto job =
      std::find_if(jobs.begin(), jobs.end(), [id](const auto& entry) { return entry->id() == id; });
  HR_CHECK(job != jobs.end(), id.value);
  return **job;
}

void Blocks::Start(Job& job, Operation& operation, Block& block, Part& part, TimeNs now) {
  LaneState& lane = lanes_[part.stage.lane];
  if (lane.row.in_flight_stages++ == 0) lane.busy_since = now;
  lane.row.in_flight_bytes += part.stage.bytes;
  part.state = Part::State::kMoving;
  part.begin_ns = now;
  recorder_.StageBegun(job, part, now);
  if (!IsBetweenNodes(part.stage.lane)) lane.company.Moves(job.id(), job.share.priority, now);
  if (operation.planned()) NoteBegin(job, operation, now);
  operation.step = block.step;
  operation.lane = part.stage.lane;
  operation.state = Operation::State::kMoving;
  operation.since_ns = now;
  SetReason(job, operation, ipc::WaitReason::kNone, 0);
  lane.out.Send(StartStage{job.MakeTransfer(operation, block, part)});
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
      job.bytes_moved += part.stage.bytes;
      board_.counters.bytes_moved += part.stage.bytes;
    }
  } else if (!operation.failure) {
    ended.failure = Failure{
        completion.code,
        fmt::format("lane {} could not move {}: {}", lanes_[part.stage.lane].port.name,
                    job.DescribeOperation(operation),
                    completion.cause.empty() ? CodeName(completion.code) : completion.cause)};
  }
  if (--block.parts_open > 0) return ended;
  if (operation.failure || ended.failure) {
    --operation.blocks_open;
    recorder_.BlockEnded(job, operation, block,
                         operation.failure ? &*operation.failure : &*ended.failure, now);
    job.FreeBlock(block);
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

void Blocks::Settle(Job& job, const Operation& operation, const Block& block, Part& part,
                    const transport::Completion& completion, TimeNs now) {
  part.state = Part::State::kNone;
  if (operation.planned() && job.times) job.times->BlockRests(now);
  queue_.Return(part.stage);
  LaneState& lane = lanes_[part.stage.lane];
  lane.row.in_flight_bytes -= part.stage.bytes;
  // At every end and not only at the last one: a lane that is never empty is not to look idle.
  if (!lane.port.measures_flow) SetBusy(lane, lane.busy_ns + now - lane.busy_since);
  lane.busy_since = now;
  --lane.row.in_flight_stages;
  ++lane.row.stages_ended;
  // What is only looked at says nothing of what moving costs.
  if (completion.code == Code::kOk && block.step != Step::kVerify) {
    lane.row.bytes_moved += part.stage.bytes;
    lane.row.last_bytes = part.stage.bytes;
    lane.row.last_ns = completion.end_ns - completion.begin_ns;
    auto bytes = static_cast<double>(part.stage.bytes);
    const bool between_nodes = IsBetweenNodes(part.stage.lane);
    if (between_nodes) {
      const auto members = static_cast<std::uint32_t>(job.nodes()->data_nodes_count());
      bytes = transport::BytesSent(members, job.nodes()->servers_count, bytes);
    }
    // Between nodes only an all-reduce sends the same from every node.
    if (!between_nodes || operation.shape.kind == Collective::kAllReduce) {
      Learn(lane, bytes, completion, now);
    }
    if (operation.planned() && !job.samples.empty()) {
      // Several may be on the lane at once: each has cost what it ended after the one before.
      const TimeNs begin = std::max(part.begin_ns, lane.settled_ns);
      job.samples[SampleOf(part.stage.lane)].Add(bytes, static_cast<double>(now - begin) / kSecond);
    }
  }
  lane.settled_ns = now;
  lane.queue_changed = true;  // shown with what the turn does to it
}

void Blocks::Learn(LaneState& lane, double bytes, const transport::Completion& completion,
                   TimeNs now) {
  // Several stages may be on the lane at once: each has cost what it ended after the one before.
  const TimeNs begin = std::max(completion.begin_ns, lane.last_end_ns);
  lane.last_end_ns = std::max(lane.last_end_ns, completion.end_ns);
  lane.cost.Add(bytes, static_cast<double>(completion.end_ns - begin) / kSecond, now);
  const transport::CostLine& line = lane.cost.line();
  lane.row.startup_ns = static_cast<TimeNs>(line.startup_s * kSecond);
  lane.row.bytes_per_s = line.s_per_byte > 0 ? static_cast<std::uint64_t>(1 / line.s_per_byte) : 0;
  lane.row.rate_bytes_per_s = static_cast<std::uint64_t>(lane.cost.RateNow(now));
  lane.row.rate_ns = now;
}

void Blocks::TakeCosts(const std::vector<transport::CostLine>& costs) {
  for (std::size_t rail = 0; rail < costs.size(); ++rail) {
    const std::size_t index = first_rail_ + rail;
    HR_CHECK(index < lanes_.size(), index);
    LaneState& lane = lanes_[index];
    // What was seen at work is better than what another job measured.
    if (lane.cost.count() > 0) continue;
    lane.cost = transport::CostKeeper(costs[rail]);
    lane.row.startup_ns = static_cast<TimeNs>(costs[rail].startup_s * kSecond);
    lane.row.bytes_per_s = static_cast<std::uint64_t>(1 / costs[rail].s_per_byte);
    ShowLane(static_cast<std::uint8_t>(index));
  }
}

void Blocks::TakeLaneFacts(const LaneFacts& facts) {
  LaneState& lane = lanes_[facts.lane];
  lane.row.messages_dropped = facts.messages_dropped;
  ipc::SetText(lane.row.transport, facts.wires);
  ShowLane(facts.lane);
}

void Blocks::Abandon(Job& job, Operation& operation, TimeNs now) {
  if (operation.blocks_open == 0) return;
  for (Block& block : job.blocks()) {
    if (block.sequence != operation.shape.sequence) continue;
    for (std::uint32_t index = 0; index < block.parts_count; ++index) {
      Part& part = block.parts[index];
      if (part.state == Part::State::kWaiting) {
        Unqueue(job, operation, block, part, now);
      } else if (part.state == Part::State::kMoving) {
        // The lane may be writing results: the ranks are told when it has let go.
        lanes_[part.stage.lane].out.Send(CancelStage{part.stage.token});
      }
    }
    if (block.parts_open > 0) continue;
    --operation.blocks_open;
    recorder_.BlockEnded(job, operation, block, &*operation.failure, now);
    job.FreeBlock(block);
  }
}

// Blocks that are through with the other nodes say nothing about those that are not.
std::uint8_t Blocks::LaneWaitedFor(Job& job, const Operation& operation) const {
  for (const Block& block : job.blocks()) {
    if (block.sequence != operation.shape.sequence) continue;
    for (std::uint32_t index = 0; index < block.parts_count; ++index) {
      const Part& part = block.parts[index];
      if (part.state == Part::State::kMoving && IsBetweenNodes(part.stage.lane)) {
        return part.stage.lane;
      }
    }
  }
  return operation.lane;
}

void Blocks::Unqueue(Job& job, Operation& operation, Block& block, Part& part, TimeNs now) {
  const bool removed = queue_.Remove(part.stage);
  HR_CHECK(removed, part.stage.token);
  part.state = Part::State::kNone;
  --block.parts_open;
  recorder_.StageDropped(job, block, part, now);
  lanes_[part.stage.lane].queue_changed = true;
  if (operation.planned()) return;  // all of its job's blocks are given up with it
  // What waited behind it waits for what it waited for.
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

void Blocks::SetShare(Job& job, TimeNs now) {
  queue_.SetShare(job.id(), job.share, now);
  for (LaneState& lane : lanes_) lane.queue_changed = true;
  if (job.nodes() != nullptr) SendShare(job);
}

// Only the last share counts, so what a lane has no room for does not pile up: it is sent again as
// it is then.
void Blocks::SendShare(Job& job) {
  const transport::Share share{.weight = job.share.weight, .priority = job.share.priority};
  job.share_unsent = false;
  for (std::size_t lane = first_rail_; lane < lanes_.size(); ++lane) {
    job.share_unsent |= !lanes_[lane].out.TrySend(service::SetShare{job.id().value, share});
  }
  shares_unsent_ |= job.share_unsent;
}

std::uint64_t Blocks::ProbeLanes(RequestToken token) {
  std::uint64_t full = 0;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!lanes_[lane].out.TrySend(ProbeLane{token})) full |= std::uint64_t{1} << lane;
  }
  return full;
}

bool Blocks::Flush(Jobs& jobs, TimeNs now) {
  bool sent = false;
  for (LaneState& lane : lanes_) sent |= lane.out.Flush(now);
  flushed_ns_ = now;
  if (!std::exchange(shares_unsent_, false)) return sent;
  for (const std::unique_ptr<Job>& job : jobs) {
    if (!job->share_unsent) continue;
    SendShare(*job);
    sent |= !job->share_unsent;
  }
  return sent;
}

TimeNs Blocks::NextFlush() const {
  TimeNs next = shares_unsent_ ? flushed_ns_ + Outgoing<LaneMessage>::kRetryAfter : kNever;
  for (const LaneState& lane : lanes_) next = std::min(next, lane.out.NextDeadline());
  return next;
}

std::vector<transport::CostLine> Blocks::CostsOf(const Job& job) const {
  std::vector<transport::CostLine> costs;
  for (std::size_t place = 0; place < job.samples.size(); ++place) {
    const bool agreed = place > 0 && job.nodes() != nullptr;
    costs.push_back(
        job.samples[place].Fit(agreed ? job.nodes()->costs[place - 1] : transport::CostLine{}));
  }
  return costs;
}

void Blocks::SetReason(Job& job, Operation& operation, ipc::WaitReason reason,
                       std::uint64_t argument) {
  operation.reason = reason;
  operation.reason_argument = argument;
  board_.Write(operation.board_row, MakeQueueRow(job, operation));
}

void Blocks::ShowLane(std::uint8_t lane) {
  lanes_[lane].row.queued_stages = queue_.Waiting(lane);
  board_.WriteLane(lane, lanes_[lane].row);
}

}  // namespace headrace::service
