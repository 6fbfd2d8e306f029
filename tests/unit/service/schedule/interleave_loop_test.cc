// Jobs beside each other on one fair lane, shifted now and then by what Interleave says: do their
// iterations get shorter, and do they stay so?
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "service/schedule/interleave.h"
#include "service/schedule/interleave_alone.h"
#include "tests/unit/service/schedule/fair_lane.h"

namespace headrace::schedule {
namespace {

constexpr std::uint64_t kEvery = 16;  // iterations of the first job between two decisions

// Block 0 is that of the last layer.
AloneIteration Alone(const TrainingJob& spec, std::vector<AloneBlock>& blocks,
                     std::vector<std::uint32_t>& last_block, std::vector<double>& forward_s) {
  for (int i = 0; i < spec.layers; ++i) {
    blocks.push_back({.ready_s = spec.backward_s * (i + 1) / spec.layers, .work_s = spec.work_s});
    last_block.push_back(static_cast<std::uint32_t>(spec.layers - 1 - i));
    forward_s.push_back(spec.forward_s / spec.layers);
  }
  return {blocks, last_block, forward_s, spec.backward_s + spec.forward_s, false};
}

struct AloneJob {
  explicit AloneJob(const TrainingJob& spec)
      : iteration(Alone(spec, blocks, last_block, forward_s)) {}
  AloneJob(const AloneJob&) = delete;
  AloneJob& operator=(const AloneJob&) = delete;

  std::vector<AloneBlock> blocks;
  std::vector<std::uint32_t> last_block;
  std::vector<double> forward_s;
  AloneIteration iteration;
};

struct Outcome {
  std::vector<double> means_s;  // by job: of the iterations in the second half
  double held_s = 0;
  int shifts = 0;
  double last_shift_s = 0;  // when
};

class Loop {
 public:
  Loop(std::vector<TrainingJob> jobs, std::uint32_t seed) : jobs_(jobs), lane_(jobs, seed) {
    for (const TrainingJob& job : jobs) alone_.push_back(std::make_unique<AloneJob>(job));
  }

  double AlonePeriod(std::size_t job) { return alone_[job]->iteration.Period(); }

  Outcome Run(std::uint64_t iterations, bool interleave) {
    while (lane_.last(0).iteration < iterations) {
      const std::size_t ended = lane_.RunToNextEnd();
      if (!interleave || ended != 0 || lane_.last(0).iteration % kEvery != 0) continue;
      Decide();
    }
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      const std::vector<double>& begins = lane_.begins(job);
      const std::size_t half = begins.size() / 2;
      outcome_.means_s.push_back((begins.back() - begins[half]) /
                                 static_cast<double>(begins.size() - 1 - half));
    }
    return outcome_;
  }

 private:
  double MeasuredPeriod(std::size_t job) const {
    const std::vector<double>& begins = lane_.begins(job);
    const std::size_t count = std::min<std::size_t>(8, begins.size() - 1);
    return (begins.back() - begins[begins.size() - 1 - count]) / static_cast<double>(count);
  }

  void Decide() {
    std::vector<Rhythm> rhythms;
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      if (lane_.last(job).iteration < kEvery / 2) return;
      rhythms.push_back(alone_[job]->iteration.MakeRhythm());
      // The iteration that stands nearest to the first job's.
      const double period_s = MeasuredPeriod(job);
      const double behind_s = lane_.last(job).begin_s - lane_.last(0).begin_s;
      rhythms.back().origin_s =
          lane_.last(job).begin_s - period_s * std::round(behind_s / period_s);
    }
    const Shifts found = Interleave(rhythms);
    if (found.verdict != Shifts::Verdict::kShift) return;
    for (std::size_t job = 1; job < jobs_.size(); ++job) {
      const double period_s = MeasuredPeriod(job);
      const double hold_s = alone_[job]->iteration.HoldFor(found.shift_s[job], 2 * period_s);
      if (hold_s <= 0) continue;
      const auto ahead = static_cast<double>(lane_.NextBorder(job) - lane_.last(job).iteration);
      lane_.Hold(job, lane_.last(job).ready_s + ahead * period_s + hold_s);
      outcome_.held_s += hold_s;
      outcome_.last_shift_s = lane_.now_s();
      ++outcome_.shifts;
    }
  }

  std::vector<TrainingJob> jobs_;
  FairLane lane_;
  std::vector<std::unique_ptr<AloneJob>> alone_;
  Outcome outcome_;
};

Outcome Train(const std::vector<TrainingJob>& jobs, bool interleave, std::uint64_t iterations = 400,
              std::uint32_t seed = 1) {
  return Loop(jobs, seed).Run(iterations, interleave);
}

// Communication is 0.4 of 1 s; 0.05 s until the first block is ready.
constexpr TrainingJob kJob{.backward_s = 0.32, .forward_s = 0.56, .layers = 8, .work_s = 0.05};

TEST(FairLane, AgreesWithTheIterationAlone) {
  for (const double work_s : {0.01, 0.05, 0.2}) {
    TrainingJob job = kJob;
    job.work_s = work_s;
    Loop loop({job}, 1);
    EXPECT_NEAR(loop.Run(50, false).means_s[0], loop.AlonePeriod(0), 1e-6) << work_s;
  }
}

TEST(InterleaveLoop, StaysCollidedOnAFairLaneForEver) {
  // The reason for all of this: half a pass of overlap stays what it was.
  TrainingJob late = kJob;
  late.begin_s = 0.1;
  const Outcome outcome = Train({kJob, late}, false);
  Loop alone({kJob}, 1);
  EXPECT_GT(outcome.means_s[0], 1.2 * alone.AlonePeriod(0));
  EXPECT_NEAR(outcome.means_s[0], outcome.means_s[1], 1e-6);
}

TEST(InterleaveLoop, LetsTwoEqualJobsTakeTurnsAfterOneShift) {
  for (const double begin_s : {0.0, 0.1, 0.25, 0.9}) {
    TrainingJob late = kJob;
    late.begin_s = begin_s;
    const Outcome outcome = Train({kJob, late}, true);
    Loop alone({kJob}, 1);
    EXPECT_NEAR(outcome.means_s[0], alone.AlonePeriod(0), 1e-6) << begin_s;
    EXPECT_NEAR(outcome.means_s[1], alone.AlonePeriod(0), 1e-6) << begin_s;
    EXPECT_EQ(outcome.shifts, 1) << begin_s;
    EXPECT_LT(outcome.held_s, alone.AlonePeriod(0)) << begin_s;
  }
}

TEST(InterleaveLoop, LetsAShorterJobIntoThePausesOfALongerOne) {
  const TrainingJob longer{.backward_s = 0.5, .forward_s = 1.1, .layers = 8, .work_s = 0.05};
  const TrainingJob shorter{.backward_s = 0.32, .forward_s = 0.54, .layers = 8, .work_s = 0.02};
  Loop alone({longer, shorter}, 1);
  ASSERT_NEAR(alone.AlonePeriod(0) / alone.AlonePeriod(1), 2, 0.2);
  TrainingJob fitted = shorter;
  fitted.forward_s += alone.AlonePeriod(0) / 2 - alone.AlonePeriod(1);
  const Outcome off = Train({longer, fitted}, false);
  const Outcome on = Train({longer, fitted}, true);
  EXPECT_LT(on.means_s[0] + on.means_s[1], off.means_s[0] + off.means_s[1]);
  EXPECT_NEAR(on.means_s[1], alone.AlonePeriod(0) / 2, 0.01);
}

TEST(InterleaveLoop, ShiftsTwoOfThreeJobs) {
  TrainingJob job = kJob;
  job.work_s = 0.02;
  job.forward_s = 0.8;
  Loop alone({job}, 1);
  const Outcome off = Train({job, job, job}, false);
  const Outcome on = Train({job, job, job}, true);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GT(off.means_s[i], 1.1 * alone.AlonePeriod(0));
    EXPECT_NEAR(on.means_s[i], alone.AlonePeriod(0), 0.01 * alone.AlonePeriod(0));
  }
}

TEST(InterleaveLoop, HoldsTheFasterOfTwoThatDriftByLittleAgainAndAgain) {
  TrainingJob faster = kJob;
  faster.forward_s -= 0.005;
  const Outcome off = Train({kJob, faster}, false);
  const Outcome on = Train({kJob, faster}, true);
  EXPECT_LT(on.means_s[0], 0.9 * off.means_s[0]);
  EXPECT_LT(on.means_s[1], 0.9 * off.means_s[1]);
  EXPECT_GT(on.shifts, 2);
  EXPECT_LT(on.held_s, 0.02 * 400);
}

TEST(InterleaveLoop, GainsMostOfItWherePassesVary) {
  TrainingJob job = kJob;
  job.jitter = 0.05;
  TrainingJob other = job;
  other.begin_s = 0.05;
  Loop alone({kJob}, 1);
  double off_s = 0;
  double on_s = 0;
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    const Outcome off = Train({job, other}, false, 800, seed);
    const Outcome on = Train({job, other}, true, 800, seed);
    off_s += (off.means_s[0] + off.means_s[1]) / 16;
    on_s += (on.means_s[0] + on.means_s[1]) / 16;
  }
  // What collisions cost, left alone and shifted.
  const double period_s = alone.AlonePeriod(0);
  EXPECT_LT(on_s - period_s, 0.5 * (off_s - period_s)) << off_s << " to " << on_s;
}

}  // namespace
}  // namespace headrace::schedule
