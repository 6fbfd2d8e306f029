#include "tests/unit/client/replay/two_ranks.h"

namespace headrace::replay {
namespace {

ReplayResult ResultOf(std::uint32_t rank) {
  ReplayResult result;
  result.warmup = 12;
  result.values_checked = 6 - rank;
  const TimeNs more = rank * kMillisecond;
  result.iterations = {
      {100 * kMillisecond, 50 * kMillisecond, 40 * kMillisecond, more},
      {90 * kMillisecond + more, 51 * kMillisecond, 39 * kMillisecond, 0},
      {300 * kMillisecond, 52 * kMillisecond - more, 38 * kMillisecond, 200 * kMillisecond}};
  for (std::uint64_t iteration = 13; iteration <= 15; ++iteration) {
    const TimeNs begin = static_cast<TimeNs>(iteration) * kSecond + more;
    IterationTrace& trace = result.traces[iteration % ReplayResult::kTraces];
    trace.iteration = iteration;
    trace.begin_ns = begin;
    trace.spans = {
        {Activity::Kind::kBackward, 1, begin, begin + 20 * kMillisecond},
        {Activity::Kind::kBackward, 0, begin + 20 * kMillisecond, begin + 50 * kMillisecond},
        {Activity::Kind::kWait, 0, begin + 50 * kMillisecond, begin + 55 * kMillisecond},
        {Activity::Kind::kForward, 0, begin + 55 * kMillisecond, begin + 80 * kMillisecond}};
  }
  return result;
}

FinalBoard BoardOfNode() {
  FinalBoard board;
  ipc::PlanRow plan{};
  plan.version = 2;
  plan.blocks = 2;
  plan.hash = 0xabc;
  plan.from_iteration = 11;
  plan.iteration = 14;
  plan.predicted_ns = 80 * kMillisecond;
  plan.lower_bound_ns = 64 * kMillisecond;
  plan.moving_ns = 20 * kMillisecond;
  ipc::SetText(plan.policy, "exact");
  board.plan = plan;
  for (std::uint32_t index = 0; index < 2; ++index) {
    ipc::PlanBlockRow block{};
    block.index = index;
    block.bytes = 4096;
    block.end_ns = index == 0 ? 30 * kMillisecond : 0;  // the second has not moved
    block.begin_ns = 21 * kMillisecond;
    block.ready_ns = 20 * kMillisecond;
    ipc::SetText(block.tensor, "conv");
    board.blocks.push_back(block);
  }
  ipc::LaneRow known{};
  known.startup_ns = 1'300'000;
  known.bytes_per_s = 1'250'000'000;
  ipc::SetText(known.name, "ucx0");
  ipc::SetText(known.transport, "ucx");
  ipc::LaneRow fresh{};
  ipc::SetText(fresh.name, "shm0");
  ipc::SetText(fresh.transport, "shm");
  board.lanes = {known, fresh};
  return board;
}

}  // namespace

Profile ToyProfile() {
  return {"toy", DType::kFloat32, {{"conv", 1000, 0.030, 0.025}, {"linear", 24, 0.020, 0.015}}};
}

std::vector<RankResult> TwoRanks() {
  return {{0, ResultOf(0), BoardOfNode()}, {1, ResultOf(1), {}}};
}

}  // namespace headrace::replay
