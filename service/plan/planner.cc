#include "service/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "service/plan/auto.h"
#include "service/plan/bound.h"
#include "service/plan/choose_codecs.h"
#include "service/plan/coded.h"
#include "service/plan/policies.h"

namespace headrace::plan {
namespace {

// All of the workload in one block, and one element of it.
Draft WholeDraft(const Workload& work, bool least) {
  Draft draft;
  draft.Open();
  for (std::uint32_t l = 0; l < work.size(); ++l) {
    draft.Append(l, 0, least ? work.element_bytes : work.bytes[l]);
    if (least) break;
  }
  return draft;
}

Assumptions AssumptionsOf(const Workload& work, const Route& route) {
  const Draft whole = WholeDraft(work, false);
  const Draft least = WholeDraft(work, true);
  const std::uint64_t bytes = work.total_bytes();
  Assumptions made_for{.backward_s = work.backward_s(), .forward_s = work.forward_s()};
  double slowest_s = -1;
  for (const Stage& stage : route.stages) {
    const double whole_s = BlockSeconds(stage, work, Collective::kAllReduce, whole.ranges, bytes);
    if (whole_s <= slowest_s) continue;
    slowest_s = whole_s;
    const double least_s =
        BlockSeconds(stage, work, Collective::kAllReduce, least.ranges, work.element_bytes);
    const auto more = static_cast<double>(std::max<std::uint64_t>(bytes - work.element_bytes, 1));
    made_for.s_per_byte = std::max(0.0, whole_s - least_s) / more;
    made_for.startup_s =
        std::max(0.0, least_s - made_for.s_per_byte * static_cast<double>(work.element_bytes));
  }
  return made_for;
}

// Units of one iteration where their size is set: a plan has as many blocks, or nearly.
constexpr std::uint64_t kSetUnitsMax = std::uint64_t{1} << 17;

Status CheckInputs(const Profile& profile, const Route& route, const Recording& recording,
                   const PolicySettings& settings, std::span<const CodecChoice> choices) {
  if (Status status = CheckProfile(profile); !status) return status;
  if (Status status = CheckRoute(route); !status) return status;
  if (Status status = CheckRecording(recording, profile.tensors.size()); !status) return status;
  if (!choices.empty() && choices.size() != profile.tensors.size()) {
    return Error(Code::kInvalidArgument, std::to_string(choices.size()) + " codecs for " +
                                             std::to_string(profile.tensors.size()) + " tensors");
  }
  if (settings.unit_bytes == 0) return {};
  if (settings.unit_bytes % SizeOf(profile.dtype) != 0) {
    return Error(Code::kInvalidArgument, "a unit of " + std::to_string(settings.unit_bytes) +
                                             " bytes is not a whole number of " +
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
  plan.codecs = CodecRunsOf(work.codecs);
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

// What encoding must save to begin.
double GainMin(std::uint32_t stops) {
  return kCodecGainMin * (1 + std::min(stops, kCodecStopsMax));
}

struct Problem {
  Policy policy = Policy::kExact;
  const Profile& profile;
  const Route& route;
  const PolicySettings& settings;
  const Recording& recording;
};

// The best plan in those codecs, and what else it could have been.
struct Planned {
  Workload work;
  Route route;
  std::vector<CandidateDraft> candidates;  // of recorded iterations
  Plan plan;
};

Planned PlanIn(const Problem& problem, std::vector<Codec> codecs) {
  Planned planned{MakeWorkload(problem.profile), problem.route, {}, {}};
  planned.work.codecs = std::move(codecs);
  // Encodings are of whole sums.
  if (!planned.work.codecs.empty()) planned.route.halves = false;
  const Workload& work = planned.work;
  const Route& route = planned.route;
  const double bound_s = LowerBound(work, route);
  const DraftOptions options{.bound_s = bound_s, .settings = problem.settings};
  if (!problem.recording.iterations.empty()) {
    planned.candidates =
        Candidates(problem.policy, problem.profile, route, problem.recording, options, work.codecs);
    planned.plan = PlanOf(problem.policy, BestOf(planned.candidates), planned.candidates, work,
                          route, problem.recording);
    return planned;
  }
  Draft draft = MakeDraft(problem.policy, work, route, options);
  draft.barrier = draft.barrier || problem.settings.barrier;
  planned.plan = PlanOf(problem.policy, draft, work, route, bound_s);
  return planned;
}

// Whether what must be used pays: nothing follows from it, but people are told.
void Judge(CodecVerdict& verdict) {
  verdict.pays = verdict.plain_s - verdict.coded_s > kCodecGainKept * verdict.plain_s;
}

// In the codecs that are asked for, whether they pay or not.
Planned PlanAsItMust(const Problem& problem, std::vector<Codec> must) {
  const Workload work = MakeWorkload(problem.profile);
  const CodecCost used = TriedCodec(work, problem.route, {}, must);
  Planned planned = PlanIn(problem, std::move(must));
  if (used.codec == Codec::kNone) return planned;
  CodecVerdict& verdict = planned.plan.verdict;
  verdict = {.cost = used,
             .plain_s = QuickSeconds(problem.policy, work, problem.route, problem.recording,
                                     problem.settings),
             .coded_s = planned.plan.predicted_s};
  Judge(verdict);
  return planned;
}

// With codecs where they save the share `gain_min` of an iteration.
Planned PlanInBestCodecs(const Problem& problem, std::span<const CodecChoice> choices,
                         double gain_min) {
  std::vector<Codec> must = CodecsAsTheyMust(choices);
  if (!LeaveCodecsToPlan(choices)) return PlanAsItMust(problem, std::move(must));
  Workload work = MakeWorkload(problem.profile);
  const std::vector<Codec> may = CodecsAsTheyMay(work, problem.route, choices);
  const CodecCost tried = TriedCodec(work, problem.route, must, may);
  if (tried.codec == Codec::kNone) return PlanIn(problem, std::move(must));
  std::vector<Codec> chosen = ChooseCodecs(problem.policy, work, problem.route, must, may, choices);
  // What does not pay is shown with all that it could be.
  if (CodedBytes(work, chosen) == CodedBytes(work, must)) chosen = may;
  const auto seconds_in = [&](const std::vector<Codec>& codecs) {
    work.codecs = codecs;
    return QuickSeconds(problem.policy, work, problem.route, problem.recording, problem.settings);
  };
  CodecVerdict verdict{.cost = TriedCodec(work, problem.route, must, chosen),
                       .plain_s = seconds_in(must),
                       .coded_s = seconds_in(chosen)};
  verdict.pays = verdict.plain_s - verdict.coded_s > gain_min * verdict.plain_s;
  Planned planned = PlanIn(problem, verdict.pays ? std::move(chosen) : std::move(must));
  (verdict.pays ? verdict.coded_s : verdict.plain_s) = planned.plan.predicted_s;
  planned.plan.verdict = verdict;
  return planned;
}

}  // namespace

Result<Plan> MakePlan(Policy policy, const Profile& profile, const Route& route,
                      std::uint32_t version, const PolicySettings& settings,
                      const Recording& recording, std::span<const CodecChoice> choices) {
  if (Status status = CheckInputs(profile, route, recording, settings, choices); !status) {
    return status.error();
  }
  Plan plan =
      PlanInBestCodecs({policy, profile, route, settings, recording}, choices, kCodecGainMin).plan;
  plan.version = version;
  return plan;
}

Result<std::optional<Plan>> MakeFasterPlan(Policy policy, const Profile& profile,
                                           const Route& route, std::uint32_t version,
                                           const Present& present, const Recording& recording,
                                           std::span<const CodecChoice> choices) {
  if (Status status = CheckInputs(profile, route, recording, {}, choices); !status) {
    return status.error();
  }
  Workload work = MakeWorkload(profile);
  if (Status status = CheckCoverage(present.plan, work); !status) {
    return status.error().Within("the plan in force");
  }
  work.codecs = CodecsOf(present.plan, work.size());
  const PolicySettings settings;
  const double gain_min = present.plan.verdict.pays ? kCodecGainKept : GainMin(present.codec_stops);
  Planned planned =
      PlanInBestCodecs({policy, profile, route, settings, recording}, choices, gain_min);
  planned.plan.version = version;
  Plan& made = planned.plan;
  const bool free = LeaveCodecsToPlan(choices);
  const bool stops_encoding = free && present.plan.verdict.pays && !made.verdict.pays;
  if (stops_encoding) return std::optional<Plan>(std::move(made));
  double present_s = 0;
  if (recording.iterations.empty()) {
    present_s = MakeTimetable(work, planned.route, DraftOf(present.plan)).iteration_s;
  } else {
    CandidateDraft kept{
        {present.plan.choice.chosen.policy, Variant::kKept}, DraftOf(present.plan), {}};
    kept.forecast = ForecastOf(work, planned.route, recording, kept.draft);
    present_s = kept.forecast.mean_s;
    // A change must be worth its trouble; one that only mends the prediction keeps the blocks.
    const bool keeps = present_s - made.predicted_s <= present.margin * present_s;
    planned.candidates.push_back(std::move(kept));
    CodecVerdict verdict = made.verdict;
    if (keeps) {
      if (free) verdict.pays = present.plan.verdict.pays;
      double& kept_s = verdict.pays || !free ? verdict.coded_s : verdict.plain_s;
      kept_s = std::min(kept_s, present_s);
      if (!free) Judge(verdict);
      made = PlanOf(policy, planned.candidates.back(), planned.candidates, work, planned.route,
                    recording);
    } else {
      // The one that was kept may be no worse than the next best.
      made = PlanOf(policy, BestOf(planned.candidates), planned.candidates, planned.work,
                    planned.route, recording);
    }
    made.verdict = verdict;
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
