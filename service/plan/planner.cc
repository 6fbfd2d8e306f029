#include "service/plan/planner.h"

#include <algorithm>

#include "service/plan/bound.h"
#include "service/plan/policies.h"
#include "service/plan/simulate.h"

namespace headrace::plan {
namespace {

Assumptions AssumptionsOf(const Workload& work, const Route& route) {
  const std::uint64_t bytes = work.total_bytes();
  Assumptions made_for{.backward_s = work.backward_s(), .forward_s = work.forward_s()};
  double slowest_s = -1;
  for (const Stage& stage : route.stages) {
    const double whole_s = StageSeconds(stage, bytes, work.element_bytes);
    if (whole_s <= slowest_s) continue;
    slowest_s = whole_s;
    const double least_s = StageSeconds(stage, work.element_bytes, work.element_bytes);
    const auto more = static_cast<double>(std::max<std::uint64_t>(bytes - work.element_bytes, 1));
    made_for.s_per_byte = std::max(0.0, whole_s - least_s) / more;
    made_for.startup_s =
        std::max(0.0, least_s - made_for.s_per_byte * static_cast<double>(work.element_bytes));
  }
  return made_for;
}

// Of an iteration, where somebody sets their size: a plan has as many blocks, or nearly.
constexpr std::uint64_t kUnitsMax = std::uint64_t{1} << 17;

}  // namespace

Result<Plan> MakePlan(Policy policy, const Profile& profile, const Route& route,
                      std::uint32_t version, const PolicySettings& settings) {
  if (Status status = CheckProfile(profile); !status) return status.error();
  if (Status status = CheckRoute(route); !status) return status.error();
  const Workload work = MakeWorkload(profile);
  if (settings.unit_bytes % work.element_bytes != 0) {
    return Error(Code::kInvalidArgument, "a unit of " + std::to_string(settings.unit_bytes) +
                                             " bytes is no whole number of " +
                                             std::string(Name(profile.dtype)) + " elements");
  }
  if (settings.unit_bytes > 0 && work.total_bytes() / settings.unit_bytes > kUnitsMax) {
    return Error(Code::kInvalidArgument, "units of " + std::to_string(settings.unit_bytes) +
                                             " bytes cut " + std::to_string(work.total_bytes()) +
                                             " bytes into more than " + std::to_string(kUnitsMax) +
                                             ": take larger ones");
  }
  const double bound_s = LowerBound(work, route);
  Draft draft = MakeDraft(policy, work, route, {.bound_s = bound_s, .settings = settings});
  draft.barrier = draft.barrier || settings.barrier;
  Plan plan = Finish(policy, draft, MakeTimetable(work, route, draft), bound_s);
  plan.version = version;
  plan.made_for = AssumptionsOf(work, route);
  return plan;
}

Result<std::optional<Plan>> MakeFasterPlan(Policy policy, const Profile& profile,
                                           const Route& route, std::uint32_t version,
                                           const Present& present) {
  Result<Plan> made = MakePlan(policy, profile, route, version);
  if (!made) return made.error();
  const Result<Simulation> simulated = Simulate(profile, route, present.plan, {});
  if (!simulated) return simulated.error().Within("the plan in force");
  double saved_s = simulated->iteration_s - made->predicted_s;
  if (present.iteration_s > 0) {
    saved_s = std::min(saved_s, present.iteration_s - present.running_s);
  }
  const double whole_s = std::max(simulated->iteration_s, present.iteration_s);
  if (saved_s <= present.margin * whole_s) return std::optional<Plan>();
  return std::optional<Plan>(std::move(made).value());
}

}  // namespace headrace::plan
