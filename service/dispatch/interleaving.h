// Lets jobs that train on one lane take turns: now and then it compares when each of them uses the
// lane, and if they collide it holds one job back, once, at the border of an iteration.
//
// Why once is enough: the first block of the iteration begins later, so its gradients arrive later,
// so the forward pass that waits for them ends later, and the next backward pass begins later. The
// hold is over by then, but the whole job, computing included, stays shifted, since its period is
// unchanged. schedule/interleave.h computes the shift, and schedule/interleave_alone.h the hold
// that makes it.
//
// The node of rank 0 holds back a job of several nodes. The other nodes begin their part of the
// block, which then waits on the lane for that node's part; so they are shifted with it. A node
// compares only the jobs that it sees, and never holds back those whose rank 0 is elsewhere.
//
// Holding costs time, so it is limited: a job's delay budget grows by a hundredth of the time it
// trains, up to one iteration, and a hold takes no more than the budget; that is at most 2 % of any
// hundred iterations. And it must pay: if the iterations of both did not get shorter by a quarter
// of what was predicted, twice in a row, the two are not held again until one of them has another
// plan.
//
// Called on dispatch's thread, after its work; compares a job once in kEvery iterations.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "service/dispatch/blocks/flow.h"
#include "service/dispatch/interleaved_job.h"

namespace headrace::service {

class Interleaving {
 public:
  static constexpr std::uint64_t kEvery = 16;  // iterations between two looks at a job
  static constexpr double kDelayShare = 0.01;  // of the time it trains a job may be held
  static constexpr double kWorthIt = 0.25;     // of what was promised must have come
  static constexpr int kViolations = 2;

  // The flow outlives it.
  explicit Interleaving(Flow& flow);

  void Check(Jobs& jobs, TimeNs now);

 private:
  struct Tracked {  // a job that trains
    JobId job;
    std::uint64_t next_check = 0;    // iteration
    std::uint64_t budget_until = 0;  // likewise; 0: nothing yet
    double delay_budget_s = 0;       // that it may be held
  };
  // Two jobs of which one was held back for the other.
  struct Pair {
    struct Side {
      JobId job;
      std::uint32_t plan = 0;
      std::uint64_t judged_at = 0;  // iteration
      double before_s = 0;
      double promised_s = 0;  // that its iterations take
    };
    std::array<Side, 2> sides;  // the job that was held, the other
    bool pending = false;       // whether it was worth it is not known yet
    int violations = 0;
  };
  struct LaneSeen {
    std::uint64_t bytes = 0;
    TimeNs busy_ns = 0;
  };
  using Shifts = schedule::Shifts;

  Tracked& Track(JobId job);
  void Forget(const Jobs& jobs);
  void Compare(Jobs& jobs, std::uint8_t lane, TimeNs now);
  // Fills interleaved_; those that may be shifted against each other.
  std::span<InterleavedJob> Gather(Jobs& jobs, std::uint8_t lane, TimeNs now);
  // The lane's rate while it is at work, in bytes of blocks a second; 0 when nothing is known.
  double RateOf(std::uint8_t lane);
  void AddDelayBudget(const InterleavedJob& one);
  void HoldBack(const InterleavedJob& held, const InterleavedJob& other, const Shifts& shifts,
                std::size_t index, TimeNs now);
  Pair& PairOf(const InterleavedJob& held, const InterleavedJob& other);
  void Judge(std::span<InterleavedJob> interleaved);
  void Judge(Pair& pair, Job& held, const std::array<double, 2>& now_s);

  Flow& flow_;
  std::vector<Tracked> tracked_;
  std::vector<Pair> pairs_;
  std::array<InterleavedJob, schedule::kRhythmsMax> interleaved_;
  std::array<LaneSeen, 1 + kRailsMax> lanes_;         // at the last look
  std::array<LaneSeen, 1 + kRailsMax> lanes_before_;  // at the one before
};

}  // namespace headrace::service
