#include "tests/unit/client/replay/played.h"

namespace headrace::replay {
namespace {

Performance PerformanceOf(std::uint32_t rank) {
  Performance performance;
  performance.warmup = 12;
  performance.values_checked = 6 - rank;
  const TimeNs more = rank * kMillisecond;
  performance.iterations = {
      {100 * kMillisecond, 50 * kMillisecond, 40 * kMillisecond, more},
      {90 * kMillisecond + more, 51 * kMillisecond, 39 * kMillisecond, 0},
      {300 * kMillisecond, 52 * kMillisecond - more, 38 * kMillisecond, 200 * kMillisecond}};
  for (std::uint64_t iteration = 13; iteration <= 15; ++iteration) {
    const TimeNs begin = static_cast<TimeNs>(iteration) * kSecond + more;
    Take& take = performance.takes[iteration % Performance::kTakes];
    take.iteration = iteration;
    take.begin_ns = begin;
    take.spans = {{Span::Kind::kBackward, 1, begin, begin + 20 * kMillisecond},
                  {Span::Kind::kBackward, 0, begin + 20 * kMillisecond, begin + 50 * kMillisecond},
                  {Span::Kind::kWait, 0, begin + 50 * kMillisecond, begin + 55 * kMillisecond},
                  {Span::Kind::kForward, 0, begin + 55 * kMillisecond, begin + 80 * kMillisecond}};
  }
  return performance;
}

Ending EndingOfNode() {
  Ending ending;
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
  ending.plan = plan;
  for (std::uint32_t index = 0; index < 2; ++index) {
    ipc::PlanBlockRow block{};
    block.index = index;
    block.bytes = 4096;
    block.end_ns = index == 0 ? 30 * kMillisecond : 0;  // the second has not moved
    block.begin_ns = 21 * kMillisecond;
    block.ready_ns = 20 * kMillisecond;
    ipc::SetText(block.tensor, "conv");
    ending.blocks.push_back(block);
  }
  ipc::LaneRow known{};
  known.startup_ns = 1'300'000;
  known.bytes_per_s = 1'250'000'000;
  ipc::SetText(known.name, "ucx0");
  ipc::SetText(known.transport, "ucx");
  ipc::LaneRow fresh{};
  ipc::SetText(fresh.name, "shm0");
  ipc::SetText(fresh.transport, "shm");
  ending.lanes = {known, fresh};
  return ending;
}

}  // namespace

Profile ToyProfile() {
  return {"toy",
          DType::kFloat32,
          {{"conv", 1000, 30 * kMillisecond, 25 * kMillisecond},
           {"linear", 24, 20 * kMillisecond, 15 * kMillisecond}}};
}

std::vector<Played> TwoRanks() {
  return {{0, PerformanceOf(0), EndingOfNode()}, {1, PerformanceOf(1), {}}};
}

}  // namespace headrace::replay
