// The door to the folder: a profile, a route and a policy go in, a plan comes out.
//
// Pure functions of their arguments: the same inputs give the same plan, bit for bit, on every
// machine (IEEE doubles, no fused multiply-add, no library functions beyond rounding and roots).
#pragma once

#include <optional>

#include "ipc/base/result.h"
#include "service/plan/plan.h"
#include "service/plan/profile.h"
#include "service/plan/route.h"

namespace headrace::plan {

// Refuses profiles and routes that do not check. `version` is the plan's number within its job.
Result<Plan> MakePlan(Policy policy, const Profile& profile, const Route& route,
                      std::uint32_t version = 1);

// The same, but nothing where `present` would under that profile and on that route take less than
// 1 / (1 - margin) times as long as the new plan: then changing is not worth it.
Result<std::optional<Plan>> MakeFasterPlan(Policy policy, const Profile& profile,
                                           const Route& route, std::uint32_t version,
                                           const Plan& present, double margin);

}  // namespace headrace::plan
