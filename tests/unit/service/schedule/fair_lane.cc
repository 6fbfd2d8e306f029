#include "tests/unit/service/schedule/fair_lane.h"

#include <algorithm>
#include <cmath>

namespace headrace::schedule {
namespace {

constexpr double kSame = 1e-12;

}  // namespace

FairLane::FairLane(std::vector<TrainingJob> jobs, std::uint32_t seed) : random_(seed) {
  running_.resize(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    running_[i].spec = jobs[i];
    Begin(running_[i], jobs[i].begin_s);
  }
}

double FairLane::Draw(double jitter) {
  return std::uniform_real_distribution<>(1 - jitter, 1 + jitter)(random_);
}

void FairLane::Begin(Running& job, double at_s) {
  ++job.iteration;
  job.begin_s = at_s;
  job.begins.push_back(at_s);
  job.backward_s = job.spec.backward_s * Draw(job.spec.jitter);
  job.forward_s = job.spec.forward_s * Draw(job.spec.jitter);
  job.block = 0;
  job.left_s = job.spec.work_s;
  job.layer = 0;
  job.compute_s = at_s + job.backward_s;
}

std::uint64_t FairLane::NextBorder(std::size_t job) const {
  const Running& running = running_[job];
  const bool begun = running.block > 0 || running.left_s < running.spec.work_s;
  return running.iteration + (begun ? 1 : 0);
}

// The gradient of the last layer comes first.
double FairLane::Running::ReadyOf(int index) const {
  return begin_s + backward_s * (index + 1) / spec.layers;
}

double FairLane::Running::MayBegin() const {
  return block == 0 ? std::max(ReadyOf(0), hold_until_s) : ReadyOf(block);
}

bool FairLane::Running::Moves(double now_s) const {
  return block < spec.layers && MayBegin() <= now_s + kSame;
}

double FairLane::Running::NextOwn(double now_s) const {
  double next_s = HUGE_VAL;
  if (block < spec.layers && !Moves(now_s)) next_s = MayBegin();
  // Layer i's gradient is in block layers - 1 - i.
  if (block > spec.layers - 1 - layer || layer == spec.layers) {
    next_s = std::min(next_s, std::max(now_s, compute_s));
  }
  return next_s;
}

void FairLane::StepOwn(Running& job) {
  if (job.compute_s > now_s_ + kSame) return;
  if (job.layer == job.spec.layers) return Begin(job, now_s_);
  if (job.block <= job.spec.layers - 1 - job.layer) return;
  job.compute_s = now_s_ + job.forward_s / job.spec.layers;
  ++job.layer;
}

std::size_t FairLane::RunToNextEnd() {
  while (ended_.empty()) {
    double sharing = 0;
    for (const Running& job : running_) sharing += job.Moves(now_s_) ? 1 : 0;
    double next_s = HUGE_VAL;
    for (const Running& job : running_) {
      next_s = std::min(next_s, job.NextOwn(now_s_));
      if (job.Moves(now_s_)) next_s = std::min(next_s, now_s_ + job.left_s * sharing);
    }
    const double passed_s = next_s - now_s_;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Running& job = running_[i];
      if (!job.Moves(now_s_)) continue;
      job.left_s -= passed_s / sharing;
      if (job.left_s > kSame) continue;
      if (job.block == 0) job.first_s = job.ReadyOf(0);
      job.left_s = job.spec.work_s;
      if (++job.block < job.spec.layers) continue;
      job.last = {job.iteration, job.begin_s, job.first_s};
      ended_.push_back(i);
    }
    now_s_ = next_s;
    for (Running& job : running_) StepOwn(job);
  }
  const std::size_t ended = ended_.back();
  ended_.pop_back();
  return ended;
}

}  // namespace headrace::schedule
