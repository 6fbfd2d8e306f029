#include "service/dispatch/interleaved_job.h"

#include <algorithm>

namespace headrace::service {
namespace {

constexpr double Seconds(TimeNs time_ns) {
  return static_cast<double>(time_ns) / static_cast<double>(kSecond);
}

// A job that has not ended an iteration for so many of its periods does something else.
constexpr double kIdlePeriods = 3;

}  // namespace

bool Trains(const Job& job) {
  if (!job.measured.times || !job.gradients || job.failure || job.gradients_failure ||
      job.in_force.paused) {
    return false;
  }
  const Gradients& gradients = *job.gradients;
  return gradients.plan() != nullptr &&
         job.measured.times->last_ended() >= gradients.plan_from() + InterleavedJob::kMeasured;
}

bool InterleavedJob::Measure(Job& measured, double bytes_per_s, TimeNs now) {
  job = &measured;
  iteration = job->measured.times->last_ended();
  const IterationTimes::Totals totals = job->measured.times->MedianTotals(kMeasured, times);
  const std::span<const IterationTimes::BlockTimes> spans =
      std::as_const(*job->measured.times).blocks(iteration);
  if (spans.empty() || times.iteration_s <= 0) return false;
  period_s = times.iteration_s;
  ready_s = Seconds(spans.front().ready_ns);
  if (Seconds(now) > ready_s + kIdlePeriods * period_s) return false;
  FillBlocks(bytes_per_s);
  alone.emplace(blocks, last_block, forward_s, period_s - Seconds(totals.waited_ns),
                job->gradients->plan()->plan->barrier);
  rhythm = alone->MakeRhythm();
  // By this clock, and not by what the client says of the begin of its backward pass.
  rhythm.origin_s = ready_s - blocks.front().ready_s;
  return true;
}

void InterleavedJob::FillBlocks(double bytes_per_s) {
  const WirePlan& plan = *job->gradients->plan();
  blocks.clear();
  last_block.assign(times.release_s.size(), 0);
  for (const WireBlock& block : plan.blocks) {
    schedule::AloneBlock& added = blocks.emplace_back();
    added.work_s = static_cast<double>(block.Bytes()) / bytes_per_s;
    for (const std::uint32_t tensor : block.tensors) {
      added.ready_s = std::max(added.ready_s, times.release_s[tensor]);
      last_block[tensor] = static_cast<std::uint32_t>(blocks.size() - 1);
    }
  }
  forward_s.assign(times.forward_s.begin(), times.forward_s.end());
}

std::uint64_t InterleavedJob::Border() const {
  const Gradients& gradients = *job->gradients;
  return gradients.head_iteration() + (gradients.head_index() > 0 ? 1 : 0);
}

double InterleavedJob::BorderReady() const {
  return ready_s + static_cast<double>(Border() - iteration) * period_s;
}

}  // namespace headrace::service
