// The entry point of the folder: a profile, a route and a policy go in, a plan comes out.
//
// Pure functions of their arguments: the same inputs give the same plan, bit for bit, on every
// machine (IEEE doubles, no fused multiply-add, no library functions beyond rounding and roots).
#pragma once

#include <optional>

#include "ipc/base/result.h"
#include "ipc/profile.h"
#include "service/plan/plan.h"
#include "service/plan/policies.h"
#include "service/plan/route.h"

namespace headrace::plan {

// Refuses profiles and routes that do not check. `version` is the plan's number within its job;
// units in the settings are whole elements.
Result<Plan> MakePlan(Policy policy, const Profile& profile, const Route& route,
                      std::uint32_t version = 1, const PolicySettings& settings = {});

// The plan in force, and when another one is worth the change.
struct Present {
  const Plan& plan;
  double iteration_s = 0;  // as it was seen, with whatever else the loop does; 0: not known
  double running_s = 0;    // of it: nobody stood still for gradients
  double margin = 0;       // share of the iteration that a change must save
};

// The same, but nothing where the new plan would save less than the margin: as both plans come out
// under that profile and on that route, and no more than the time that iterations stand still now.
// What a loop does besides its passes hides gradients too, and makes a saving a smaller share.
Result<std::optional<Plan>> MakeFasterPlan(Policy policy, const Profile& profile,
                                           const Route& route, std::uint32_t version,
                                           const Present& present);

}  // namespace headrace::plan
