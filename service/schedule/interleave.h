// Whether jobs that share a lane should take turns, and by how much to shift them. (pure)
//
// A job that trains by a plan uses its lane at the same times in every iteration, and leaves it
// idle while it computes. Two such jobs of about the same period collide in the same way iteration
// after iteration: a fair lane gives both half for as long as they overlap, so both are late by the
// overlap, and as both are late by the same time, they collide again. A fair lane never moves them
// apart. But if one of them is delayed once, so that it uses the lane while the other computes,
// they no longer collide, and both iterations get shorter.
//
// The model is a circle as long as the common period: each job is a pattern of arcs on it, and
// shifting a job in time rotates its pattern. Where the patterns together need more than the whole
// lane there is an excess, and the rotation with the least excess is sought. The idea of such
// circles is CASSINI's (Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine
// Learning Clusters", NSDI 2024), where a cluster's scheduler uses them.
//
// With constant demand between its edges, the excess is piecewise linear in the shift, with corners
// only where an edge of one pattern meets an edge of the other. So trying these corners finds the
// least excess exactly, without a grid.
//
// No clock, thread, allocation or log; times are seconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::schedule {

inline constexpr std::size_t kRhythmsMax = 4;  // jobs that are shifted against each other
inline constexpr std::size_t kUsesMax = 4;     // stretches in which a job uses the lane
inline constexpr std::uint32_t kTurnsMax = 4;  // iterations of one job on a common circle

// From begin_s on, for length_s, the job asks for `share` of the lane.
struct Use {
  double begin_s = 0;
  double length_s = 0;
  double share = 1;

  double end_s() const { return begin_s + length_s; }
};

// One iteration of a job on the lane as it would be if it had the lane alone.
class Rhythm {
 public:
  double period_s = 0;
  // When an iteration begins at present, by a clock that all jobs share; uses count from there.
  double origin_s = 0;

  // The lane is all its own from begin_s to end_s, not before the end of the one added before.
  // Where there are more than kUsesMax, those with the least between them become one that asks for
  // less than the whole lane.
  void AddUse(double begin_s, double end_s);

  std::span<const Use> uses() const { return {uses_.data(), count_}; }
  // Time for which the whole lane would do.
  double work_s() const;

 private:
  void MergeNearest();

  std::array<Use, kUsesMax + 1> uses_{};
  std::size_t count_ = 0;
};

struct InterleaveLimits {
  // Periods are common to within this; what is left has to be corrected again and again.
  double tolerance = 0.02;
  // The part of the period that must be gained at least.
  double margin = 0.03;
  // The part of the lane's time that jobs may ask for; beyond it they collide in any place.
  double full = 0.95;
  // The part of the period that they may collide for. Who collides with its last blocks is late,
  // who does so with its first catches up while its backward pass goes on: so jobs that still meet
  // pull each other together again, and a shift lasts only where they miss each other.
  double left = 0.01;
};

struct Shifts {
  enum class Verdict : std::uint8_t {
    kShift,           // shift the jobs so
    kNoCommonPeriod,  // they meet in another way each time
    kLaneFull,        // they collide wherever they stand
    kLittleToGain,    // they stand well
  };

  Verdict verdict = Verdict::kLittleToGain;
  // By how much to delay each job; less than its period on the circle. The first stays where it is.
  std::array<double, kRhythmsMax> shift_s{};
  // Iterations of each job on the circle.
  std::array<std::uint32_t, kRhythmsMax> turns{};
  double circle_s = 0;
  double excess_s = 0;        // on the circle, as they stand
  double least_excess_s = 0;  // with the shifts

  // The iteration time of a job whose period alone is that: it comes late by its part of the
  // excess.
  double Expected(std::size_t job, double period_s) const {
    return period_s + least_excess_s / turns[job];
  }
};

// Two to kRhythmsMax jobs. Jobs are placed one after the other, each where it adds least to those
// before it; of places that are equally good, in the middle of the widest stretch of them, where
// jobs have most room to move before they meet again. Shifts are 0 unless the verdict is kShift.
Shifts Interleave(std::span<const Rhythm> jobs, const InterleaveLimits& limits = {});

// The excess on a circle that holds turns[i] iterations of job i, when job i is delayed by shift_s.
double ExcessOf(std::span<const Rhythm> jobs, double circle_s, std::span<const std::uint32_t> turns,
                std::span<const double> shift_s);

}  // namespace headrace::schedule
