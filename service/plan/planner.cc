#include "service/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "service/plan/auto.h"
#include "service/plan/bound.h"
#include "service/plan/policies.h"

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
constexpr std::uint64_t kSetUnitsMax = std::uint64_t{1} << 17;

Status CheckInputs(const Profile& profile, const Route& route, const Recording& recording,
                   const PolicySettings& settings) {
  if (Status status = CheckProfile(profile); !status) return status;
  if (Status status = CheckRoute(route); !status) return status;
  if (Status status = CheckRecording(recording, profile.tensors.size()); !status) return status;
  if (settings.unit_bytes == 0) return {};
  if (settings.unit_bytes % SizeOf(profile.dtype) != 0) {
    return Error(Code::kInvalidArgument, "a unit of " + std::to_string(settings.unit_bytes) +
                                             " bytes is no whole number of " +
                                             std::string(Name(profile.dtype)) + " elements");
  }
  if (profile.bytes() / settings.unit_bytes > kSetUnitsMax) {
    return Error(Code::kInvalidArgument, "units of " + std::to_string(settings.unit_bytes) +
                                             " bytes cut " + std::to_string(profile.bytes()) +
                                             " bytes into more than " +
                                             std::to_string(kSetUnitsMax) + ": take larger ones");
  }
  return {};
}

// The plan of one draft, as it comes out for one set of times; the bound is of whole blocks.
Plan PlanOf(Policy policy, const Draft& draft, const Workload& work, const Route& route,
            double whole_bound_s) {
  const bool halves = draft.HasHalves();
  Plan plan = Finish(policy, draft, MakeTimetable(work, route, draft),
                     halves ? LowerBound(work, route, true) : whole_bound_s);
  plan.made_for = AssumptionsOf(work, route);
  return plan;
}

Plan PlanOf(Policy policy, const CandidateDraft& best,
            const std::vector<CandidateDraft>& candidates, const Workload& work, const Route& route,
            const Recording& recording) {
  Plan plan = PlanOf(policy, best.draft, work, route, LowerBound(work, route));
  plan.predicted_s = best.forecast.mean_s;
  // The bound is for the median times, and some recorded iterations are shorter.
  plan.lower_bound_s = std::min(plan.lower_bound_s, plan.predicted_s);
  plan.choice = ChoiceOf(best, candidates, recording);
  return plan;
}

}  // namespace

Result<Plan> MakePlan(Policy policy, const Profile& profile, const Route& route,
                      std::uint32_t version, const PolicySettings& settings,
                      const Recording& recording) {
  if (Status status = CheckInputs(profile, route, recording, settings); !status) {
    return status.error();
  }
  const Workload work = MakeWorkload(profile);
  const double bound_s = LowerBound(work, route);
  const DraftOptions options{.bound_s = bound_s, .settings = settings};
  if (!recording.iterations.empty()) {
    const auto candidates = Candidates(policy, profile, route, recording, options);
    Plan plan = PlanOf(policy, BestOf(candidates), candidates, work, route, recording);
    plan.version = version;
    return plan;
  }
  Draft draft = MakeDraft(policy, work, route, options);
  draft.barrier = draft.barrier || settings.barrier;
  Plan plan = PlanOf(policy, draft, work, route, bound_s);
  plan.version = version;
  return plan;
}

Result<std::optional<Plan>> MakeFasterPlan(Policy policy, const Profile& profile,
                                           const Route& route, std::uint32_t version,
                                           const Present& present, const Recording& recording) {
  if (Status status = CheckInputs(profile, route, recording, {}); !status) return status.error();
  const Workload work = MakeWorkload(profile);
  if (Status status = CheckCoverage(present.plan, work); !status) {
    return status.error().Within("the plan in force");
  }
  Plan made;
  double present_s = 0;
  if (recording.iterations.empty()) {
    made = *MakePlan(policy, profile, route, version);
    present_s = MakeTimetable(work, route, DraftOf(present.plan)).iteration_s;
  } else {
    auto candidates = Candidates(policy, profile, route, recording,
                                 {.bound_s = LowerBound(work, route), .settings = {}});
    CandidateDraft kept{
        {present.plan.choice.chosen.policy, Variant::kKept}, DraftOf(present.plan), {}};
    kept.forecast = ForecastOf(work, route, recording, kept.draft);
    present_s = kept.forecast.mean_s;
    const CandidateDraft& best = BestOf(candidates);
    // A change must be worth its trouble; one that only mends the prediction keeps the blocks.
    const bool keeps = present_s - best.forecast.mean_s <= present.margin * present_s;
    candidates.push_back(std::move(kept));
    const CandidateDraft& taken = keeps ? candidates.back() : BestOf(candidates);
    made = PlanOf(policy, taken, candidates, work, route, recording);
    made.version = version;
    const double off_s = std::abs(present.plan.predicted_s - present_s);
    if (keeps && off_s > present.tolerance * present_s) return std::optional<Plan>(made);
  }
  double saved_s = present_s - made.predicted_s;
  if (present.iteration_s > 0) {
    saved_s = std::min(saved_s, present.iteration_s - present.running_s);
  }
  const double whole_s = std::max(present_s, present.iteration_s);
  if (saved_s <= present.margin * whole_s) return std::optional<Plan>();
  return std::optional<Plan>(std::move(made));
}

}  // namespace headrace::plan
