// The event simulation: how any plan really goes when release and forward times differ from the
// profile, on the lanes of its route.
//
// It shares no code with the timetable (draft.h) that predicts; without jitter the two agree to
// rounding, which the tests hold them to.
#pragma once

#include <cstdint>
#include <vector>

#include "ipc/profile.h"
#include "service/plan/plan.h"
#include "service/plan/route.h"

namespace headrace::plan {

// Each tensor's backward and forward time is multiplied by a number from [1 - fraction,
// 1 + fraction], drawn evenly from a sequence that depends on nothing but the seed.
struct Jitter {
  double fraction = 0;  // 0 to 1
  std::uint64_t seed = 1;
};

struct Span {
  std::uint32_t block = 0;
  std::uint32_t stage = 0;
  std::uint32_t lane = 0;
  double begin_s = 0;
  double end_s = 0;
};

struct LaneUse {
  double busy_s = 0;
  double utilisation = 0;  // of the iteration
};

struct Simulation {
  double iteration_s = 0;
  double lower_bound_s = 0;             // of the iteration as it went, jitter included
  double excess = 0;                    // iteration_s / lower_bound_s - 1
  double forward_wait_s = 0;            // time the forward pass stood still for communication
  std::vector<LaneUse> lanes;           // as in Route::lanes
  std::vector<Span> spans;              // what ran where, by begin
  std::vector<double> release_s;        // per tensor, as it went
  std::vector<double> forward_begin_s;  // per tensor, as it went
  std::vector<double> forward_end_s;
};

Profile Jittered(const Profile& profile, const Jitter& jitter);

// Refuses a plan that does not cover the profile's tensors, and a route or jitter that does not
// check.
Result<Simulation> Simulate(const Profile& profile, const Route& route, const Plan& plan,
                            const Jitter& jitter);

}  // namespace headrace::plan
