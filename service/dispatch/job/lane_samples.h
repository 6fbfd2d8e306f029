// The costs of the blocks of a job's plan on one lane, from their start to their end. The next plan
// is made from them.
//
// The lane's own line (transport/probe/cost_keeper.h) follows the last stages, and those at the end
// of an iteration are small. A plan needs the line of all blocks of the last iterations, weighted
// by their duration. Plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/base/clock.h"
#include "transport/network.h"
#include "transport/probe/line_fit.h"
#include "transport/transport.h"

namespace headrace::service {

class LaneSamples {
 public:
  // Some iterations under wfbp, and many under plans of few blocks, which alone say little of the
  // startup.
  static constexpr std::size_t kSamplesMax = 768;
  static constexpr std::size_t kSamplesMin = 4;
  // From so many samples of the last plan on those of earlier ones weigh less.
  static constexpr std::size_t kOfPlanMin = 8;

  LaneSamples() { samples_.reserve(kSamplesMax); }

  // What bounds the prior is that of the quickest of so many, by so large a share of their bytes: a
  // burst that a rate limit lets through is quicker than blocks are.
  static constexpr std::size_t kRecentMax = 32;
  static constexpr double kQuickShare = 0.25;

  // How long a stage of a block took that dispatch sent at `begin_ns`, once for each: several may
  // be on the lane at once, and each has cost what it ended after the job's one before. What others
  // did meanwhile is part of it. Where it took longer for the lane than for dispatch, whose clock
  // is that of a turn, in which two may end, the lane is right.
  double SecondsOf(TimeNs begin_ns, const transport::Completion& completion, TimeNs now);
  // `plan`: the version of the one that the block belongs to.
  void Add(std::uint32_t plan, double bytes, double seconds);
  // The job has come to another wire: what was seen so far says nothing any more.
  void Clear() {
    is_of_prior_ = false;
    samples_.clear();
    of_last_plan_ = 0;
    recent_count_ = 0;
    next_ = 0;
  }
  // One that took as long for other reasons than the wire, which may be quicker.
  void AddBound(double bytes, double seconds);

  // Whether the job's wire is the one that the prior was measured on.
  bool is_of_prior() const { return is_of_prior_; }
  // What is believed without samples, but no slower than what was quick of late.
  transport::CostLine Believed(const transport::CostLine& prior) const;
  // The line of the samples (transport::FitBlocks); where there are too few of them, Believed.
  transport::CostLine Fit(const transport::CostLine& prior) const;

 private:
  struct PlanSample {
    transport::CostSample cost;
    std::uint32_t plan = 0;
  };

  // Those of the last plan weigh 1.
  std::vector<transport::WeightedSample> WeightedSamples() const;
  // The sample or bound, of the last ones, up to which there is kQuickShare of all bytes; or none.
  transport::CostSample Quick() const;

  std::vector<PlanSample> samples_;  // a ring
  std::uint32_t last_plan_ = 0;      // of the sample that was added last
  std::size_t of_last_plan_ = 0;     // samples
  std::size_t next_ = 0;
  bool is_of_prior_ = true;
  std::array<transport::CostSample, kRecentMax> recent_{};  // samples and bounds, a ring
  std::size_t recent_count_ = 0;                            // that were ever added
  // The end of the job's last stage on the lane, as dispatch and as the lane had it.
  TimeNs settled_ns_ = 0;
  TimeNs ended_ns_ = 0;
};

}  // namespace headrace::service
