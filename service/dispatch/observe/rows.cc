#include "service/dispatch/observe/rows.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "ipc/base/check.h"
#include "ipc/board.h"
#include "service/dispatch/observe/record.h"

namespace headrace::service {
namespace {

ipc::StageState StateOf(const Operation& operation) {
  switch (operation.state) {
    case Operation::State::kGathering:
      return ipc::StageState::kGathering;
    case Operation::State::kMoving:
      return ipc::StageState::kMoving;
    default:
      return ipc::StageState::kWaiting;
  }
}

std::int64_t Nanoseconds(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

ipc::JobState StateOf(const Job& job) {
  if (job.failed) return ipc::JobState::kFailed;
  return job.HasMet() ? ipc::JobState::kRunning : ipc::JobState::kGathering;
}

// The gradient has been posted for an iteration before the head's, which has not ended.
bool IsOfEarlier(const Gradients& gradients, std::uint32_t tensor) {
  return gradients.IterationOf(tensor) < gradients.head_iteration() &&
         gradients.posts(tensor).ranks != 0;
}

// A plan's blocks are known by their place in it, as in the row's `block`; inside they have numbers
// of their own.
std::uint64_t ArgumentOf(const Job& job, const Operation& operation) {
  const std::uint64_t argument = operation.reason_argument;
  if (operation.paired() && operation.reason == ipc::WaitReason::kBehindBlock) {
    return PairNumber(argument);
  }
  const bool is_planned = operation.reason == ipc::WaitReason::kBehindBlock &&
                          (argument & kPlannedSequence) != 0 && job.gradients != nullptr;
  return is_planned ? job.gradients->operation(argument).index + 1 : argument;
}

// The other node that a send or receive is of; empty: none, or not known.
std::string_view NodeOfOtherSide(const Job& job, const OperationSpec& spec) {
  if (job.nodes() == nullptr) return {};
  for (const std::uint32_t rank : {spec.source, spec.target}) {
    if (rank == ipc::kAnyRank || job.IsHere(rank)) continue;
    return job.nodes()->nodes[NodeOf(*job.nodes(), rank)].name;
  }
  return {};
}

}  // namespace

ipc::JobRow MakeJobRow(const Job& job) {
  const JobSums& sums = job.record->sums;
  ipc::JobRow row{};
  row.id = job.id().value;
  row.state = static_cast<std::uint32_t>(StateOf(job));
  row.owner_uid = job.owner_uid();
  row.world_size = job.world_size();
  row.ranks_attached = job.attached();
  row.epoch = job.epoch();
  row.opened_ns = job.opened_ns();
  row.operations_ended = sums.operations_ended;
  row.operations_failed = sums.operations_failed;
  row.bytes_moved = sums.bytes_moved;
  row.operations_open = job.open.operations + (job.gradients ? job.gradients->open_count() : 0);
  row.restarts = job.restarts();
  row.weight = job.in_force.share.weight;
  row.priority = job.in_force.share.priority;
  row.limit_bytes_per_s = job.in_force.share.limit_bytes_per_s;
  row.sends_class = static_cast<std::uint32_t>(job.in_force.share.by_urgency ? SendsClass::kAbove
                                                                             : SendsClass::kSame);
  row.sends_ended = sums.sends_ended;
  row.receives_ended = sums.receives_ended;
  row.sends_bytes = sums.sends_bytes;
  row.sends_waiting = job.pairs().waiting();
  row.encoded_bytes = sums.codec.plain_bytes;
  row.encoded_sent_bytes = sums.codec.sent_bytes;
  row.encoded_gpu_bytes = sums.encoded_gpu_bytes;
  row.encode_ns = sums.codec.encode_ns;
  row.decode_ns = sums.codec.decode_ns;
  if (sums.codec.sum_squares > 0) {
    const double share = std::sqrt(sums.codec.residual_squares / sums.codec.sum_squares);
    row.residual_millionths = static_cast<std::uint64_t>(std::min(share, 1e6) * 1e6);
  }
  const RecoveryRecord& recovery = job.record->recovery;
  row.world_before = recovery.world_before;
  row.recoveries = recovery.count;
  row.recovery_ns = recovery.last_ns;
  row.recovered_ns = recovery.sum_ns;
  row.joiners_waiting = job.steering.applicants.joiners;
  row.spares_waiting = job.steering.applicants.spares;
  row.evictions = recovery.evictions + job.steering.EvictionsCount();
  row.paused = job.in_force.paused ? 1 : 0;
  row.draining = job.in_force.draining ? 1 : 0;
  row.blocks_ended = sums.blocks_ended;
  row.gathering_ns = sums.gathering_ns;
  row.waiting_ns = sums.waiting_ns;
  row.moving_ns = sums.moving_ns;
  row.held_ns = sums.held_ns;
  std::ranges::copy(sums.failed_by_code, std::begin(row.failed_by_code));
  for (const JobRank& entry : job.ranks()) {
    if (entry.session == nullptr || !entry.session->HasDeviceMemory()) continue;
    for (std::size_t gpu = 0; gpu < ipc::kGpuRowsMax; ++gpu) {
      row.device_bytes[gpu] += entry.session->UseOf(static_cast<std::int8_t>(gpu)).bytes;
    }
  }
  ipc::SetText(row.name, job.name());
  const std::string& waits = job.waits_for.empty() ? job.slow.text : job.waits_for;
  ipc::SetText(row.failure, job.failure ? job.failure->text : waits);
  return row;
}

ipc::RankRow MakeRankRow(const Job& job, std::uint32_t rank) {
  const JobRank& entry = job.ranks()[rank];
  HR_CHECK(entry.session != nullptr, rank);
  const Session& session = *entry.session;
  const RankRecord& record = job.record->ranks[rank];
  ipc::RankRow row{};
  HR_CHECK(entry.ended <= entry.posted, rank, entry.posted, entry.ended);
  row.job_id = job.id().value;
  row.rank = rank;
  row.pid = session.identity().pid;
  row.tensors = static_cast<std::uint32_t>(session.tensors_count());
  row.segment_bytes = session.segment_bytes();
  row.operations_posted = entry.posted;
  row.operations_ended = entry.ended;
  row.attached_ns = session.identity().attached_ns;
  row.bytes_posted = record.bytes_posted;
  row.last_posts = record.last_posts;
  row.late_ns = record.late_ns;
  row.waited_ns = record.waited_ns;
  return row;
}

ipc::QueueRow MakeQueueRow(const Job& job, const Operation& operation) {
  ipc::QueueRow row{};
  row.block = operation.number();
  if (operation.planned()) {
    row.block = operation.index + 1;
    row.iteration = static_cast<std::uint32_t>(operation.iteration);
    row.tensors = static_cast<std::uint32_t>(operation.wire().tensors.size());
  }
  row.job_id = job.id().value;
  row.state = static_cast<std::uint32_t>(StateOf(operation));
  row.reason = static_cast<std::uint32_t>(operation.reason);
  row.wait_argument = ArgumentOf(job, operation);
  row.ranks_missing = job.WantedOf(operation.posts) & ~operation.posts.ready();
  if (operation.paired()) {
    row.source = operation.spec.source;
    row.target = operation.spec.target;
    row.tag = operation.spec.tag;
    ipc::SetText(row.peer, NodeOfOtherSide(job, operation.spec));
  }
  row.bytes = operation.spec.Bytes();
  row.stage = static_cast<std::uint8_t>(operation.stage);
  row.kind = static_cast<std::uint8_t>(operation.spec.kind);
  row.dtype = static_cast<std::uint8_t>(operation.spec.dtype);
  row.lane = operation.lane;
  row.posted_ns = operation.posts.opened_ns;
  row.since_ns = operation.since_ns;
  ipc::SetText(row.tensor, job.TensorName(operation));
  if (operation.reason == ipc::WaitReason::kPeer) {
    ipc::SetText(row.peer, job.DescribePeers(operation.reason_argument));
  }
  return row;
}

ipc::QueueRow MakeHeadRow(const Job& job, TimeNs now) {
  Gradients& gradients = *job.gradients;
  ipc::QueueRow row{};
  row.job_id = job.id().value;
  row.state = static_cast<std::uint32_t>(ipc::StageState::kGathering);
  row.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  row.block = gradients.head_index() + 1;
  row.iteration = static_cast<std::uint32_t>(gradients.head_iteration());
  row.posted_ns = now;
  row.since_ns = now;
  const WireBlock* const head = gradients.Head();
  if (head == nullptr) {
    // With a plan in force, all nodes must have taken the next one before its first iteration.
    const bool switches = gradients.plan() != nullptr;
    if (switches) row.wait_argument = gradients.head_iteration();
    row.reason = static_cast<std::uint32_t>(switches       ? ipc::WaitReason::kPlanSwitch
                                            : job.formed() ? ipc::WaitReason::kNoPlan
                                                           : ipc::WaitReason::kNodesNotReady);
    return row;
  }
  HR_CHECK(!head->tensors.empty(), row.block);
  row.kind = static_cast<std::uint8_t>(head->kind);
  row.tensors = static_cast<std::uint32_t>(head->tensors.size());
  row.bytes = head->Bytes();
  row.dtype = static_cast<std::uint8_t>(head->dtype);
  const std::optional<std::uint32_t> missing = gradients.Missing(job.local_ranks());
  const std::uint32_t tensor = missing.value_or(head->tensors.front());
  ipc::SetText(row.tensor, gradients.layout().tensors[tensor].name);
  if (!missing && gradients.AwaitsScatters()) {
    row.reason = static_cast<std::uint32_t>(ipc::WaitReason::kBehindBlock);
    row.wait_argument = gradients.head_index();  // counted from 1 it is the one before the head
    return row;
  }
  if (!missing) {  // as many blocks as may are on their way
    row.reason = static_cast<std::uint32_t>(ipc::WaitReason::kInFlight);
    row.wait_argument = kPlannedOpenMax;
    return row;
  }
  // This node's ranks have done their part: whoever holds the iteration up, it is none of them.
  if (IsOfEarlier(gradients, tensor)) {
    row.reason = static_cast<std::uint32_t>(ipc::WaitReason::kIteration);
    row.wait_argument = gradients.IterationOf(tensor);
    return row;
  }
  row.ranks_missing = job.local_ranks() & ~gradients.posts(tensor).ready();
  if (const auto awaited = job.FirstAwaited(gradients.posts(tensor)); awaited) {
    row.wait_argument = *awaited;
    row.reason = static_cast<std::uint32_t>(ipc::WaitReason::kGpuNotReady);
    return row;
  }
  row.wait_argument = job.FirstMissing(gradients.posts(tensor));
  const bool here = job.ranks()[row.wait_argument].session != nullptr;
  row.reason = static_cast<std::uint32_t>(here ? ipc::WaitReason::kRankNotReady
                                               : ipc::WaitReason::kRankNotAttached);
  return row;
}

namespace {

void FillCodecs(const plan::Plan& plan, ipc::PlanRow& row) {
  std::map<std::uint64_t, std::uint32_t> counts;  // by codec
  for (const plan::CodecRun& run : plan.codecs) {
    row.compressed_tensors += run.count;
    counts[SteeringValue(run.codec)] += run.count;
  }
  if (!counts.empty()) {
    const auto most =
        std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; });
    ipc::SetText(row.codec, Name(*CodecOfValue(most->first)));
  }
  if (const plan::CodecVerdict& verdict = plan.verdict; verdict.exists()) {
    ipc::SetText(row.judged_codec, Name(verdict.cost.codec));
    row.plain_ns = Nanoseconds(verdict.plain_s);
    row.coded_ns = Nanoseconds(verdict.coded_s);
    row.codec_pays = verdict.pays ? 1 : 0;
  }
}

}  // namespace

ipc::PlanRow MakePlanRow(const Job& job) {
  HR_CHECK(job.gradients != nullptr, job.id().value);
  const Gradients& gradients = *job.gradients;
  ipc::PlanRow row{};
  row.job_id = job.id().value;
  row.tensors = gradients.count();
  for (const LayoutTensor& tensor : gradients.layout().tensors) row.bytes += tensor.Bytes();
  if (gradients.offered() != nullptr) {
    row.next_version = gradients.offered()->plan->version;
    row.next_iteration = gradients.next_from();
  }
  if (gradients.plan() == nullptr) return row;
  const WirePlan& wire = *gradients.plan();
  const plan::Plan& plan = *wire.plan;
  row.version = plan.version;
  row.blocks = static_cast<std::uint32_t>(wire.blocks.size());
  HR_CHECK(job.record->plan.block_rows.size() <= wire.blocks.size(), wire.blocks.size());
  row.rows_left_out = row.blocks - static_cast<std::uint32_t>(job.record->plan.block_rows.size());
  row.barrier = plan.barrier ? 1 : 0;
  row.in_flight_max = plan.in_flight_max;
  row.hash = wire.hash;
  row.from_iteration = gradients.plan_from();
  row.predicted_ns = Nanoseconds(plan.predicted_s);
  row.lower_bound_ns = Nanoseconds(plan.lower_bound_s);
  row.predicted_backward_ns = Nanoseconds(plan.made_for.backward_s);
  row.predicted_forward_ns = Nanoseconds(plan.made_for.forward_s);
  row.predicted_startup_ns = Nanoseconds(plan.made_for.startup_s);
  if (plan.made_for.s_per_byte > 0) {
    row.predicted_bytes_per_s = static_cast<std::uint64_t>(1 / plan.made_for.s_per_byte);
  }
  ipc::SetText(row.policy, plan::Name(plan.policy));
  FillCodecs(plan, row);
  const plan::Choice& choice = plan.choice;
  row.recorded_iterations = choice.iterations;
  if (choice.iterations > 0) {
    row.predicted_p90_ns = Nanoseconds(choice.p90_s);
    ipc::SetText(row.chosen, plan::Describe(choice.chosen));
  }
  if (choice.next_s > 0) {
    row.next_best_ns = Nanoseconds(choice.next_s);
    ipc::SetText(row.next_best, plan::Describe(choice.next));
  }
  HR_CHECK(job.measured.times != nullptr, job.id().value, plan.version);
  const IterationTimes::Spread spread = job.measured.times->MeasuredSpread();
  row.measured_mean_ns = spread.mean_ns;
  row.measured_p90_ns = spread.p90_ns;
  const IterationTimes::Totals totals = job.measured.times->MedianTotals();
  row.iteration = totals.iteration;
  row.backward_ns = totals.backward_ns;
  row.forward_ns = totals.forward_ns;
  row.waited_ns = totals.waited_ns;
  row.measured_ns = totals.iteration_ns;
  row.moving_ns = totals.moving_ns;
  row.elsewhere_ns = totals.elsewhere_ns;
  const IterationTimes::Sums& sums = job.measured.times->sums();
  row.iterations_count = sums.count;
  row.iterations_ns = sums.iterations_ns;
  row.iterations_waited_ns = sums.waited_ns;
  row.iterations_moving_ns = sums.moving_ns;
  return row;
}

ipc::PlanBlockRow MakePlanBlockRow(const Job& job, const WirePlan& plan, std::uint32_t index) {
  HR_CHECK(index < plan.blocks.size(), index, plan.blocks.size());
  const WireBlock& wire = plan.blocks[index];
  HR_CHECK(!wire.tensors.empty() && wire.plan_block < plan.plan->blocks.size(), index,
           wire.plan_block);
  const plan::PlannedBlock& block = plan.plan->blocks[wire.plan_block];
  ipc::PlanBlockRow row{};
  row.job_id = job.id().value;
  row.index = index;
  row.bytes = wire.Bytes();
  row.first_tensor = wire.tensors.front();
  row.last_tensor = wire.tensors.back();
  row.parts = static_cast<std::uint32_t>(wire.tensors.size());
  row.runs = static_cast<std::uint32_t>(wire.runs.size());
  row.predicted_begin_ns = Nanoseconds(block.begin_s);
  row.predicted_end_ns = Nanoseconds(block.end_s);
  ipc::SetText(row.tensor, job.gradients->layout().tensors[row.first_tensor].name);
  return row;
}

}  // namespace headrace::service
