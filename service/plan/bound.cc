#include "service/plan/bound.h"

#include <algorithm>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/cost.h"
#include "service/plan/scale_codecs.h"
#include "service/plan/sweep.h"

namespace headrace::plan {
namespace {

// Jackson's preemptive schedule: the lane always works on the ready gradient with the longest tail.
// The newest gradient has the longest tail, so what waits is a stack.
double PreemptiveSeconds(const Workload& work, double s_per_byte) {
  struct Waiting {
    std::size_t tensor;
    double left_s;
  };
  std::vector<Waiting> stack;
  double latest_s = 0;
  double now = 0;
  for (std::size_t l = work.size(); l-- > 0;) {
    // The lane works until gradient l is ready.
    const double until = work.release_s[l];
    while (!stack.empty() && now + stack.back().left_s <= until) {
      now += stack.back().left_s;
      latest_s = std::max(latest_s, now + work.tail_s[stack.back().tensor]);
      stack.pop_back();
    }
    if (!stack.empty()) stack.back().left_s -= until - now;
    now = until;
    stack.push_back({l, s_per_byte * static_cast<double>(work.bytes[l])});
  }
  for (; !stack.empty(); stack.pop_back()) {
    now += stack.back().left_s;
    latest_s = std::max(latest_s, now + work.tail_s[stack.back().tensor]);
  }
  return latest_s;
}

// The bound for one lane with a straight line below its own. `around_s`: what every block spends in
// other stages, before and after, at the least.
double LaneBound(const Workload& work, const CostPiece& line, double around_s) {
  const double first = work.backward_s() + line.Seconds(static_cast<double>(work.bytes[0])) +
                       around_s + work.forward_s();
  const double flow = PreemptiveSeconds(work, line.s_per_byte) + line.startup_s + around_s;
  return std::max(first, flow);
}

// The same for a lane that every block passes once, among other stages: seen from that lane alone a
// plan is one of a serial lane, whose optimum the sweep finds, startups included. What stages
// around it add comes on top, unless computing alone takes as long.
//
// Two halves of a block have a startup of half of the line's each. Where a half carries bytes, let
// a whole block of that startup carry half of them: a plan of whole blocks that takes no longer. So
// no plan of halves is faster than the optimum with half of the startup.
double SweptBound(const Workload& work, const CostPiece& line, double around_s, bool halves) {
  const double computing_s = work.backward_s() + work.forward_s();
  const double startup_s = halves ? line.startup_s / 2 : line.startup_s;
  const double swept_s = SweepCuts(work, startup_s, line.s_per_byte, computing_s).iteration_s;
  constexpr double kRoundingShare = 1e-12;
  if (swept_s <= computing_s * (1 + kRoundingShare)) return computing_s;
  return (swept_s + around_s) * (1 - kRoundingShare);
}

// What a block of `bytes` or more takes in a stage at least.
double LeastStageSeconds(const PiecewiseCost& line, double bytes, std::uint64_t bytes_max) {
  double least = 0;
  for (const CostPiece& below : LinesBelow(line, bytes_max)) {
    least = std::max(least, below.Seconds(bytes));
  }
  return least;
}

// The first tensor is released last and needed first. If one whole block carries it, it passes
// every stage in full; if several do, each takes a startup of a lane that blocks pass once.
double FirstTensorBound(const Workload& work, const Route& route, const CostPiece& line,
                        double around_s) {
  const auto bytes = static_cast<double>(work.bytes[0]);
  double one_s = 0;
  for (const Stage& stage : route.stages) {
    one_s += LeastStageSeconds(StageCost(stage), bytes, work.total_bytes());
  }
  const double several_s = around_s + line.startup_s + line.Seconds(bytes);
  return work.backward_s() + std::min(one_s, several_s) + work.forward_s();
}

// The stages before the first and after the last use of a lane add at least their shortest time.
// Those in between do not: the lane works on other blocks meanwhile.
double SecondsAround(const Workload& work, const Route& route, std::uint32_t lane) {
  std::size_t first = route.stages.size();
  std::size_t last = 0;
  for (std::size_t stage = 0; stage < route.stages.size(); ++stage) {
    if (route.stages[stage].rails.front().lane != lane) continue;
    first = std::min(first, stage);
    last = stage;
  }
  HR_CHECK(first <= last, lane, first, last);  // the lane has a stage
  double around_s = 0;
  for (std::size_t stage = 0; stage < route.stages.size(); ++stage) {
    if (stage >= first && stage <= last) continue;
    around_s += LeastStageSeconds(StageCost(route.stages[stage]), 1, work.total_bytes());
  }
  return around_s;
}

}  // namespace

double LowerBound(const Workload& work, const Route& route, bool halves) {
  if (!work.codecs.empty()) {
    const ScaledProblem scaled = ScaleByCodecs(work, route, InNodeScale::kLeast);
    return LowerBound(scaled.work, scaled.route, halves);
  }
  double bound = work.backward_s() + work.forward_s();
  for (std::uint32_t lane = 0; lane < route.lanes.size(); ++lane) {
    PiecewiseCost line;
    int uses = 0;
    for (const Stage& stage : route.stages) {
      if (stage.rails.front().lane != lane) continue;
      ++uses;
      const PiecewiseCost stage_line = StageCost(stage);
      line = line.pieces.empty() ? stage_line : Sum(line, stage_line);
    }
    if (line.pieces.empty()) continue;
    const double around_s = SecondsAround(work, route, lane);
    for (const CostPiece& below : LinesBelow(line, work.total_bytes())) {
      bound = std::max(bound, LaneBound(work, below, around_s));
      // On a single stage the plan is the sweep's, and another way to its bound says more.
      const bool among_others = uses == 1 && route.stages.size() > 1;
      if (!among_others) continue;
      bound = std::max(bound, SweptBound(work, below, around_s, halves));
      if (!halves) bound = std::max(bound, FirstTensorBound(work, route, below, around_s));
    }
  }
  return bound;
}

}  // namespace headrace::plan
