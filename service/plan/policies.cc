#include "service/plan/policies.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/scale_codecs.h"

namespace headrace::plan {
namespace {

// Whether it looks at costs, and not only at sizes and at what is ready.
bool PlansByCost(Policy policy, const PolicySettings& settings) {
  switch (policy) {
    case Policy::kBsp:
    case Policy::kWfbp:
    case Policy::kDdp:
    case Policy::kHorovod:
    case Policy::kP3:
      return false;
    default:
      return settings.unit_bytes == 0;
  }
}

Draft MakePlainDraft(Policy policy, const Workload& work, const Route& route,
                     const DraftOptions& options) {
  switch (policy) {
#define HEADRACE_POLICY(number, function, name) \
  case Policy::k##function:                     \
    return function(work, route, options);
    HEADRACE_POLICIES(HEADRACE_POLICY)
#undef HEADRACE_POLICY
  }
  HR_CHECK(false, static_cast<int>(policy));
  return {};
}

std::size_t CodecsCount(const Workload& work) {
  std::vector<Codec> found;
  for (const Codec& codec : work.codecs) {
    if (std::ranges::find(found, codec) == found.end()) found.push_back(codec);
  }
  return found.size();
}

}  // namespace

Draft MakeDraft(Policy policy, const Workload& work, const Route& route,
                const DraftOptions& options) {
  if (work.codecs.empty() || !PlansByCost(policy, options.settings)) {
    return MakePlainDraft(policy, work, route, options);
  }
  ScaledProblem scaled = ScaleByCodecs(work, route, InNodeScale::kMean);
  const auto make = [&] {
    return Unscaled(MakePlainDraft(policy, scaled.work, scaled.route, options), scaled.work, work);
  };
  Draft draft = make();
  const std::size_t codecs_count = CodecsCount(work);
  if (codecs_count < 2) return draft;
  // Most blocks then have gradients of each codec, and a startup for each.
  for (Stage& stage : scaled.route.stages) {
    for (Rail& rail : stage.rails) {
      for (CostPiece& piece : rail.line.pieces) {
        piece.startup_s *= static_cast<double>(codecs_count);
      }
    }
  }
  Draft larger = make();
  const double draft_s = MakeTimetable(work, route, draft).iteration_s;
  const bool faster = MakeTimetable(work, route, larger).iteration_s < draft_s;
  return faster ? std::move(larger) : std::move(draft);
}

}  // namespace headrace::plan
