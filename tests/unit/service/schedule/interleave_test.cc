// Which shifts make jobs take turns on a lane: by hand, and against a fine grid.
#include "service/schedule/interleave.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace headrace::schedule {
namespace {

using Verdict = Shifts::Verdict;

Rhythm Job(double period_s, std::vector<std::pair<double, double>> uses, double origin_s = 0) {
  Rhythm job;
  job.period_s = period_s;
  job.origin_s = origin_s;
  for (const auto& [from_s, to_s] : uses) job.AddUse(from_s, to_s);
  return job;
}

double ExcessAt(const std::vector<Rhythm>& jobs, const Shifts& found, std::vector<double> shift_s) {
  return ExcessOf(jobs, found.circle_s, std::span(found.turns).first(jobs.size()), shift_s);
}

// The least excess over `steps` places of the last job, the others where they were put.
double LeastOnGrid(const std::vector<Rhythm>& jobs, const Shifts& found, int steps) {
  const std::size_t last = jobs.size() - 1;
  std::vector<double> shifts(found.shift_s.begin(), found.shift_s.begin() + jobs.size());
  double least_s = HUGE_VAL;
  for (int step = 0; step < steps; ++step) {
    shifts[last] = found.circle_s / found.turns[last] * step / steps;
    least_s = std::min(least_s, ExcessAt(jobs, found, shifts));
  }
  return least_s;
}

TEST(Interleave, PutsTheSecondInTheMiddleOfTheFirstOnesPause) {
  const std::vector jobs{Job(0.300, {{0.1, 0.2}}), Job(0.300, {{0.1, 0.2}}, 3.0)};
  const Shifts found = Interleave(jobs);
  ASSERT_EQ(found.verdict, Verdict::kShift);
  EXPECT_NEAR(found.excess_s, 0.1, 1e-9);
  EXPECT_NEAR(found.least_excess_s, 0.0, 1e-9);
  EXPECT_EQ(found.shift_s[0], 0.0);
  EXPECT_NEAR(found.shift_s[1], 0.150, 1e-9);
  EXPECT_NEAR(found.Expected(1, 0.300), 0.300, 1e-9);
}

TEST(Interleave, LeavesJobsAloneThatMissEachOther) {
  const std::vector jobs{Job(0.300, {{0.1, 0.2}}), Job(0.300, {{0.1, 0.2}}, 0.12)};
  const Shifts found = Interleave(jobs);
  EXPECT_EQ(found.verdict, Verdict::kLittleToGain);
  EXPECT_EQ(found.shift_s[1], 0.0);
}

TEST(Interleave, LeavesJobsAloneThatHardlyTouch) {
  const std::vector jobs{Job(0.300, {{0.1, 0.2}}), Job(0.300, {{0.1, 0.2}}, 0.095)};
  const Shifts found = Interleave(jobs);
  EXPECT_NEAR(found.excess_s, 0.005, 1e-9);
  EXPECT_EQ(found.verdict, Verdict::kLittleToGain);
}

TEST(Interleave, FitsTwoIterationsOfOneJobIntoThePausesOfALongerOne) {
  // The long one leaves two pauses of 0.15 s that are 0.2 s apart, the short one needs 0.1 s of
  // every 0.2 s.
  const std::vector jobs{Job(0.400, {{0.0, 0.05}, {0.2, 0.25}}), Job(0.201, {{0.0, 0.1}})};
  const Shifts found = Interleave(jobs);
  ASSERT_EQ(found.verdict, Verdict::kShift);
  EXPECT_EQ(found.turns[0], 1U);
  EXPECT_EQ(found.turns[1], 2U);
  EXPECT_NEAR(found.excess_s, 0.1, 1e-9);
  EXPECT_NEAR(found.least_excess_s, 0.0, 1e-9);
  EXPECT_NEAR(found.shift_s[1], 0.075, 1e-9);
}

TEST(Interleave, SharesWhatIsLeftOfTheExcessAmongIterations) {
  // However it stands, one of the short job's iterations meets the long one's use.
  const std::vector jobs{Job(0.400, {{0.0, 0.2}}), Job(0.200, {{0.0, 0.08}})};
  const Shifts found = Interleave(jobs);
  EXPECT_EQ(found.verdict, Verdict::kLittleToGain);
  EXPECT_NEAR(found.excess_s, 0.08, 1e-9);
  EXPECT_NEAR(found.least_excess_s, 0.08, 1e-9);
  EXPECT_NEAR(found.Expected(0, 0.4), 0.48, 1e-9);
  EXPECT_NEAR(found.Expected(1, 0.2), 0.24, 1e-9);
}

TEST(Interleave, GivesUpWherePeriodsHaveNothingInCommon) {
  const std::vector jobs{Job(0.300, {{0.1, 0.2}}), Job(0.414, {{0.1, 0.2}})};
  EXPECT_EQ(Interleave(jobs).verdict, Verdict::kNoCommonPeriod);
  EXPECT_EQ(Interleave(jobs).shift_s[1], 0.0);
  const std::vector far{Job(0.1, {{0.0, 0.05}}), Job(0.9, {{0.1, 0.2}})};
  EXPECT_EQ(Interleave(far).verdict, Verdict::kNoCommonPeriod);
}

TEST(Interleave, GivesUpWhereTheLaneIsTooFullInAnyCase) {
  const std::vector jobs{Job(0.300, {{0.1, 0.25}}), Job(0.300, {{0.1, 0.25}})};
  EXPECT_EQ(Interleave(jobs).verdict, Verdict::kLaneFull);
}

TEST(Interleave, GivesUpWhereJobsWouldStillMeet) {
  // There is time enough for both, but no pause that is long enough.
  const std::vector jobs{Job(0.45, {{0.0, 0.1}, {0.15, 0.25}}), Job(0.45, {{0.0, 0.21}}, 0.02)};
  EXPECT_EQ(Interleave(jobs, {.left = 0.5}).verdict, Verdict::kShift);
  EXPECT_EQ(Interleave(jobs).verdict, Verdict::kLaneFull);
  EXPECT_EQ(Interleave(jobs).shift_s[1], 0.0);
}

TEST(Interleave, RefusesToThinkAboutJobsWithoutAPeriod) {
  const std::vector jobs{Job(0.300, {{0.1, 0.25}}), Job(0, {})};
  EXPECT_EQ(Interleave(jobs).verdict, Verdict::kLittleToGain);
}

TEST(Interleave, PlacesThreeJobsBesideEachOther) {
  const std::vector jobs{Job(0.300, {{0.0, 0.09}}), Job(0.300, {{0.0, 0.09}}),
                         Job(0.300, {{0.0, 0.09}})};
  const Shifts found = Interleave(jobs, {.left = 0.2});
  ASSERT_EQ(found.verdict, Verdict::kShift);
  EXPECT_NEAR(found.excess_s, 0.18, 1e-9);
  // The second stands in the middle of the pause, which leaves two of 0.06 s for the third.
  EXPECT_NEAR(found.least_excess_s, 0.03, 1e-9);
}

TEST(Rhythm, JoinsUsesThatTouch) {
  const Rhythm job = Job(1.0, {{0.1, 0.2}, {0.2, 0.3}, {0.5, 0.6}});
  ASSERT_EQ(job.uses().size(), 2U);
  EXPECT_NEAR(job.uses()[0].length_s, 0.2, 1e-9);
  EXPECT_EQ(job.uses()[0].share, 1.0);
}

TEST(Rhythm, JoinsTheNearestWhereThereAreTooMany) {
  const Rhythm job =
      Job(1.0, {{0.0, 0.1}, {0.2, 0.3}, {0.35, 0.45}, {0.6, 0.7}, {0.8, 0.9}, {0.9, 1.0}});
  ASSERT_EQ(job.uses().size(), kUsesMax);
  EXPECT_NEAR(job.work_s(), 0.6, 1e-9);
  EXPECT_NEAR(job.uses()[1].begin_s, 0.2, 1e-9);
  EXPECT_NEAR(job.uses()[1].end_s(), 0.45, 1e-9);
  EXPECT_NEAR(job.uses()[1].share, 0.8, 1e-9);
}

class Drawn {
 public:
  explicit Drawn(std::uint32_t seed) : random_(seed) {}

  double From(double low, double high) {
    return std::uniform_real_distribution<>(low, high)(random_);
  }
  // A job that uses at most `full` of its period, in one to four stretches.
  Rhythm Make(double period_s, double full) {
    Rhythm job;
    job.period_s = period_s;
    job.origin_s = From(0, 10);
    const int uses = std::uniform_int_distribution<>(1, 4)(random_);
    for (int i = 0; i < uses; ++i) {
      const double part_s = period_s / uses;
      const double length_s = From(0.1, 1) * full * part_s;
      const double begin_s = i * part_s + From(0, part_s - length_s);
      job.AddUse(begin_s, begin_s + length_s);
    }
    return job;
  }

 private:
  std::mt19937 random_;
};

void ExpectSound(const std::vector<Rhythm>& jobs, const Shifts& found) {
  EXPECT_EQ(found.shift_s[0], 0.0);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_GE(found.shift_s[i], 0.0);
    EXPECT_LE(found.shift_s[i], jobs[i].period_s * 1.02);
    if (found.verdict != Verdict::kShift) {
      EXPECT_EQ(found.shift_s[i], 0.0);
    }
  }
  EXPECT_LE(found.least_excess_s, found.excess_s + 1e-9);
}

TEST(Interleave, IsNeverWorseThanTheBestOnAFineGrid) {
  int shifted = 0;
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Drawn drawn(seed);
    const double period_s = drawn.From(0.05, 2);
    const double other_s = period_s * (seed % 3 == 0 ? 0.5 : seed % 3 == 1 ? 1 : 2.0 / 3);
    const std::vector jobs{drawn.Make(period_s, 0.45),
                           drawn.Make(other_s * drawn.From(0.995, 1.005), 0.45)};
    const Shifts found = Interleave(jobs, {.margin = 1e-6, .left = 1});
    ExpectSound(jobs, found);
    ASSERT_NE(found.verdict, Verdict::kNoCommonPeriod);
    // Nothing to gain: then nothing on the grid is better either.
    EXPECT_LE(found.least_excess_s, LeastOnGrid(jobs, found, 2000) + 2e-6 * found.circle_s);
    if (found.verdict != Verdict::kShift) continue;
    ++shifted;
    const std::vector<double> shifts(found.shift_s.begin(), found.shift_s.begin() + 2);
    EXPECT_NEAR(ExcessAt(jobs, found, shifts), found.least_excess_s, 1e-9);
  }
  EXPECT_GT(shifted, 100);
}

TEST(Interleave, PlacesTheLastOfSeveralAsWellAsTheGridDoes) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Drawn drawn(seed);
    const double period_s = drawn.From(0.05, 2);
    std::vector<Rhythm> jobs;
    for (std::size_t i = 0; i < 3 + seed % 2; ++i) {
      jobs.push_back(drawn.Make(seed % 5 == 0 && i == 1 ? 2 * period_s : period_s, 0.3));
    }
    const Shifts found = Interleave(jobs, {.margin = -1, .full = 2, .left = 4});
    ExpectSound(jobs, found);
    ASSERT_EQ(found.verdict, Verdict::kShift);
    EXPECT_LE(found.least_excess_s, LeastOnGrid(jobs, found, 1000) + 1e-9);
  }
}

TEST(Interleave, DoesNotDependOnWhereTheClockStarted) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Drawn drawn(seed);
    std::vector jobs{drawn.Make(1, 0.4), drawn.Make(0.5, 0.4)};
    const Shifts found = Interleave(jobs);
    for (Rhythm& job : jobs) job.origin_s += 12345.5;
    const Shifts later = Interleave(jobs);
    EXPECT_EQ(found.verdict, later.verdict);
    EXPECT_NEAR(found.least_excess_s, later.least_excess_s, 1e-6);
    EXPECT_NEAR(found.shift_s[1], later.shift_s[1], 1e-6);
  }
}

}  // namespace
}  // namespace headrace::schedule
