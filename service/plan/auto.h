// The policy `auto`: whatever is fastest on the iterations that were recorded.
//
// Every policy makes its draft for the median of the recorded times, `exact` makes some more for
// other quantiles, for busy lanes and for other startups, and each is simulated on every recorded
// iteration (forecast.h). The least mean wins; so on those iterations no policy is faster.
#pragma once

#include <vector>

#include "service/plan/choice.h"
#include "service/plan/forecast.h"
#include "service/plan/policies.h"

namespace headrace::plan {

struct CandidateDraft {
  PlanCandidate candidate;
  Draft draft;
  Forecast forecast;
};

// What `policy` has to choose from: `auto` all, another policy its own draft. `profile` has the
// times that everything was made for before iterations were recorded. `options` as for MakeDraft,
// `codecs` as Workload has them.
std::vector<CandidateDraft> Candidates(Policy policy, const Profile& profile, const Route& route,
                                       const Recording& recording, const DraftOptions& options,
                                       const std::vector<Codec>& codecs = {});

// The one with the least mean, the first of equals. There is one.
const CandidateDraft& BestOf(const std::vector<CandidateDraft>& candidates);

// What a plan says of the choice.
Choice ChoiceOf(const CandidateDraft& best, const std::vector<CandidateDraft>& candidates,
                const Recording& recording);

}  // namespace headrace::plan
