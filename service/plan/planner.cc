#include "service/plan/planner.h"

#include "ipc/base/check.h"
#include "service/plan/bound.h"
#include "service/plan/bytescheduler.h"
#include "service/plan/exact.h"
#include "service/plan/fifo.h"
#include "service/plan/simulate.h"
#include "service/plan/us_byte.h"

namespace headrace::plan {
namespace {

Draft MakeDraft(Policy policy, const Workload& work, const Route& route, double bound_s) {
  switch (policy) {
    case Policy::kBsp:
      return Bsp(work);
    case Policy::kWfbp:
      return Wfbp(work);
    case Policy::kMgWfbp:
      return MgWfbp(work, route);
    case Policy::kByteScheduler:
      return ByteScheduler(work, route, TuneByteScheduler(work, route));
    case Policy::kUsByte:
      return UsByte(work, SteadyLine(route), TuneUsByte(work, route));
    case Policy::kExact:
      return Exact(work, route, bound_s);
  }
  HR_CHECK(false, static_cast<int>(policy));
  return {};
}

}  // namespace

Result<Plan> MakePlan(Policy policy, const Profile& profile, const Route& route,
                      std::uint32_t version) {
  if (Status status = CheckProfile(profile); !status) return status.error();
  if (Status status = CheckRoute(route); !status) return status.error();
  const Workload work = MakeWorkload(profile);
  const double bound_s = LowerBound(work, route);
  const Draft draft = MakeDraft(policy, work, route, bound_s);
  Plan plan = Finish(policy, draft, MakeTimetable(work, route, draft), bound_s);
  plan.version = version;
  return plan;
}

Result<std::optional<Plan>> MakeFasterPlan(Policy policy, const Profile& profile,
                                           const Route& route, std::uint32_t version,
                                           const Plan& present, double margin) {
  Result<Plan> made = MakePlan(policy, profile, route, version);
  if (!made) return made.error();
  const Result<Simulation> simulated = Simulate(profile, route, present, {});
  if (!simulated) return simulated.error().Within("the plan in force");
  if (made->predicted_s >= simulated->iteration_s * (1 - margin)) return std::optional<Plan>();
  return std::optional<Plan>(std::move(made).value());
}

}  // namespace headrace::plan
