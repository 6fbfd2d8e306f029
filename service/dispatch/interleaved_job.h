// A job that trains, as interleaving sees it: its iterations now, and what they would be if it had
// its lane alone.
//
// Plain data, kept from one comparison to the next so that its memory is reused; dispatch's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "service/dispatch/job/job.h"
#include "service/schedule/interleave.h"
#include "service/schedule/interleave_alone.h"

namespace headrace::service {

struct InterleavedJob {
  static constexpr std::uint64_t kMeasured = 8;  // the last iterations, whose middle counts

  Job* job = nullptr;
  std::uint64_t iteration = 0;  // the last that has ended
  double period_s = 0;          // as it is now
  double ready_s = 0;           // when that iteration's first block was ready
  NodeTimes times;
  std::vector<schedule::AloneBlock> blocks;
  std::vector<std::uint32_t> last_block;
  std::vector<double> forward_s;
  std::optional<schedule::AloneIteration> alone;  // refers to the memory of those above
  schedule::Rhythm rhythm;

  // Takes in what is known of the job, whose blocks pass a lane that moves so many bytes of them a
  // second. False when it is too little, or the iterations have stopped.
  bool Measure(Job& measured, double bytes_per_s, TimeNs now);
  // The iteration whose first block has not begun, and when that is to be expected.
  std::uint64_t Border() const;
  double BorderReady() const;
  std::uint32_t PlanVersion() const { return job->gradients->plan()->plan->version; }

 private:
  void FillBlocks(double bytes_per_s);
};

// Whether the job moves gradients by a plan that it has had for some iterations, and nothing keeps
// it from going on.
bool Trains(const Job& job);

}  // namespace headrace::service
