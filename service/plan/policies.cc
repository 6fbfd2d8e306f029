#include "service/plan/policies.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/scale_codecs.h"

namespace headrace::plan {
namespace {

// As many in a block, on average, that it pays to make the draft again for larger startups.
constexpr double kSeveralCodecs = 1.25;

Draft CallPolicy(Policy policy, const Workload& work, const Route& route,
                 const DraftOptions& options) {
  switch (policy) {
#define HEADRACE_POLICY(number, function, name) \
  case Policy::k##function:                     \
    return WithWholeMatrices(work, function(work, route, options));
    HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY
  }
  HR_CHECK(false, static_cast<int>(policy));
  return {};
}

std::size_t CodecsCount(const Workload& work, std::span<const TensorRange> ranges) {
  std::vector<Codec> found;
  for (const TensorRange& range : ranges) {
    const Codec& codec = work.codecs[range.tensor];
    if (std::ranges::find(found, codec) == found.end()) found.push_back(codec);
  }
  return found.size();
}

// The mean over a draft's blocks.
double CodecsInABlock(const Workload& work, const Draft& draft) {
  double sum = 0;
  for (const DraftBlock& block : draft.blocks) {
    sum += static_cast<double>(CodecsCount(work, draft.RangesOf(block)));
  }
  return sum / static_cast<double>(draft.blocks.size());
}

}  // namespace

const PolicyTraits& TraitsOf(Policy policy) {
  switch (policy) {
#define HEADRACE_POLICY(number, function, name) \
  case Policy::k##function:                     \
    return k##function##Traits;
    HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY
  }
  HR_CHECK(false, static_cast<int>(policy));
  return kExactTraits;
}

Draft MakeDraft(Policy policy, const Workload& work, const Route& route,
                const DraftOptions& options) {
  const bool sizes_by_cost = TraitsOf(policy).sizes_by_cost && options.settings.unit_bytes == 0;
  if (work.codecs.empty() || !sizes_by_cost) {
    return CallPolicy(policy, work, route, options);
  }
  ScaledProblem scaled = ScaleByCodecs(work, route, InNodeScale::kMean);
  const auto make = [&] {
    return WithWholeMatrices(
        work, Unscaled(CallPolicy(policy, scaled.work, scaled.route, options), scaled.work, work));
  };
  Draft draft = make();
  // Blocks with gradients of several codecs have a startup for each.
  const double codecs_count = CodecsInABlock(work, draft);
  if (codecs_count < kSeveralCodecs) return draft;
  for (Stage& stage : scaled.route.stages) {
    for (Rail& rail : stage.rails) {
      for (CostPiece& piece : rail.line.pieces) {
        piece.startup_s *= codecs_count;
      }
    }
  }
  Draft larger = make();
  const double draft_s = MakeTimetable(work, route, draft).iteration_s;
  const bool faster = MakeTimetable(work, route, larger).iteration_s < draft_s;
  return faster ? std::move(larger) : std::move(draft);
}

}  // namespace headrace::plan
