// The costs of the blocks of a job's plan on one lane, from their start to their end. The next plan
// is made from them.
//
// The lane's own line (transport/probe/cost_keeper.h) follows the last stages, and those at the end
// of an iteration are small. A plan needs the line of all blocks of the last iterations, weighted
// by their duration. Plain data.
#pragma once

#include <cstddef>
#include <vector>

#include "transport/network.h"
#include "transport/probe/line_fit.h"

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

  // `plan`: the version of the one in force.
  void Add(std::uint32_t plan, double bytes, double seconds);
  // What was seen so far says nothing any more.
  void Clear() {
    samples_.clear();
    of_last_plan_ = 0;
    quickest_ = {};
    next_ = 0;
  }
  // One that took as long for other reasons than the wire, which may be quicker.
  void AddBound(double bytes, double seconds);

  // What is believed without samples, but no slower than what was quickest.
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

  std::vector<PlanSample> samples_;   // a ring
  std::uint32_t last_plan_ = 0;       // of the sample that was added last
  std::size_t of_last_plan_ = 0;      // samples
  transport::CostSample quickest_{};  // of all and of bounds, for each byte; or none
  std::size_t next_ = 0;
};

}  // namespace headrace::service
