#include "service/plan/auto.h"

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "service/plan/exact.h"
#include "service/plan/reshape.h"
#include "service/plan/scale_codecs.h"

namespace headrace::plan {
namespace {

constexpr double kEarlyShare = 0.25;
constexpr double kLateShare = 0.75;
constexpr double kLatestShare = 0.9;
constexpr double kStartupFactor = 4;
constexpr double kCeilingShare = 1.0 / 16;

// The blocks of `exact` with a floor or a ceiling to their size, where that changes them.
void AddSizes(const Workload& work, const Route& route, std::vector<CandidateDraft>& candidates) {
  const auto exact = std::ranges::find(
      candidates, Policy::kExact, [](const CandidateDraft& each) { return each.candidate.policy; });
  HR_CHECK(exact != candidates.end(), candidates.size());
  const Draft draft = exact->draft;
  const auto add = [&](Variant variant, Draft sized) {
    sized = WithWholeMatrices(work, sized);
    if (sized.blocks.size() == draft.blocks.size()) return;
    candidates.push_back({{Policy::kExact, variant}, std::move(sized), {}});
  };
  const CostPiece line = SteadyLine(route).pieces.back();
  if (line.s_per_byte > 0) add(Variant::kFloor, Joined(draft, line.startup_s / line.s_per_byte));
  add(Variant::kCeiling,
      Capped(work, draft, kCeilingShare * static_cast<double>(work.total_bytes())));
}

// Drafts of `exact` for other times and other costs than the medians. On one straight lane only:
// elsewhere `exact` tries such lines by itself.
void AddVariants(const Profile& profile, const Route& route, const Recording& recording,
                 const std::vector<Codec>& codecs, std::vector<CandidateDraft>& candidates) {
  if (!route.serial()) return;
  const CostPiece line = route.stages[0].rails[0].line.pieces[0];
  const auto add = [&](Variant variant, double q, double busy, double startup_factor) {
    Workload work = MakeWorkload(QuantileOf(recording, profile, q, busy));
    work.codecs = codecs;
    const CostPiece other{0, line.startup_s * startup_factor, line.s_per_byte};
    const ScaledProblem scaled = ScaleByCodecs(work, route, InNodeScale::kMean);
    Draft draft = WithWholeMatrices(
        work, Unscaled(ExactOnLane(scaled.work, other, work.backward_s() + work.forward_s()).draft,
                       scaled.work, work));
    candidates.push_back({{Policy::kExact, variant}, std::move(draft), {}});
  };
  add(Variant::kEarly, kEarlyShare, 1, 1);
  add(Variant::kLate, kLateShare, 1, 1);
  add(Variant::kLatest, kLatestShare, 1, 1);
  if (recording.contention > 0) {
    add(Variant::kBusy, 0.5, 1, 1);
    add(Variant::kIdle, 0.5, 0, 1);
  }
  add(Variant::kLargeBlocks, 0.5, 0.5, kStartupFactor);
  add(Variant::kSmallBlocks, 0.5, 0.5, 1 / kStartupFactor);
}

}  // namespace

const PolicyTraits kAutoTraits = {
    .barrier = false, .sizes_by_cost = true, .halves = true, .from_others = true};

// Without recorded iterations the best is `exact`, which no policy of whole blocks beats on one set
// of times; one that takes all-reduces apart can, by startups.
Draft Auto(const Workload& work, const Route& route, const DraftOptions& options) {
  Draft exact = Exact(work, route, options);
  if (!route.halves) return exact;
  FastestDraft fastest(work, route);
  fastest.Offer(std::move(exact));
  for (const Policy policy : kPolicies) {
    const PolicyTraits& traits = TraitsOf(policy);
    if (traits.from_others || !traits.halves) continue;
    fastest.Offer(MakeDraft(policy, work, route, options));
  }
  return std::move(fastest).Release();
}

std::string Describe(const PlanCandidate& candidate) {
  std::string text(Name(candidate.policy));
  const auto variant = static_cast<std::size_t>(candidate.variant);
  if (variant > 0 && variant < kVariantNames.size()) {
    text += ", ";
    text += kVariantNames[variant];
  }
  return text;
}

std::vector<CandidateDraft> Candidates(Policy policy, const Profile& profile, const Route& route,
                                       const Recording& recording, const DraftOptions& options,
                                       const std::vector<Codec>& codecs) {
  Workload work = MakeWorkload(profile);
  work.codecs = codecs;
  std::vector<CandidateDraft> candidates;
  for (const Policy each : kPolicies) {
    if (each == Policy::kAuto) continue;
    if (policy != Policy::kAuto && each != policy) continue;
    Draft draft = MakeDraft(each, work, route, options);
    draft.barrier = draft.barrier || options.settings.barrier;
    const bool drops = policy == Policy::kAuto && draft.barrier && !options.settings.barrier;
    // Without the barrier the same blocks can only be earlier in use.
    if (drops) draft.barrier = false;
    const Variant variant = drops ? Variant::kNoBarrier : Variant::kPlain;
    candidates.push_back({{each, variant}, std::move(draft), {}});
  }
  if (policy == Policy::kAuto) {
    AddSizes(work, route, candidates);
    AddVariants(profile, route, recording, codecs, candidates);
  }
  for (CandidateDraft& each : candidates) {
    each.draft.barrier = each.draft.barrier || options.settings.barrier;
    each.forecast = ForecastOf(work, route, recording, each.draft);
  }
  return candidates;
}

const CandidateDraft& BestOf(const std::vector<CandidateDraft>& candidates) {
  HR_CHECK(!candidates.empty());
  return *std::min_element(candidates.begin(), candidates.end(),
                           [](const CandidateDraft& left, const CandidateDraft& right) {
                             return left.forecast.mean_s < right.forecast.mean_s;
                           });
}

Choice ChoiceOf(const CandidateDraft& best, const std::vector<CandidateDraft>& candidates,
                const Recording& recording) {
  Choice choice{.iterations = static_cast<std::uint32_t>(recording.iterations.size()),
                .p90_s = best.forecast.p90_s,
                .chosen = best.candidate,
                .next = {},
                .next_s = 0};
  for (const CandidateDraft& each : candidates) {
    if (each.candidate.policy == best.candidate.policy) continue;
    if (choice.next_s > 0 && each.forecast.mean_s >= choice.next_s) continue;
    choice.next = each.candidate;
    choice.next_s = each.forecast.mean_s;
  }
  return choice;
}

}  // namespace headrace::plan
