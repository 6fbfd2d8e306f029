// The `exact` policy: blocks that may both split and fuse tensors, for the least iteration time.
#pragma once

#include "service/plan/draft.h"
#include "service/plan/policies.h"
#include "service/plan/route.h"
#include "service/plan/workload.h"

namespace headrace::plan {

struct LaneOptimum {
  Draft draft;
  // Whether cutting between elements only cost nothing, so that no plan at all is faster.
  bool lossless = false;
};

// The sweep's plan, cut to whole elements.
LaneOptimum ExactOnLane(const Workload& work, const CostPiece& line, double bound_s);

// For routes where no such theory holds. Drafts are made with several straight lines that stand for
// the route, the drafts of all other policies join them, the best few are improved by merging and
// halving blocks, and the best by the route's own timetable is returned.
Draft ExactOnRoute(const Workload& work, const Route& route, double bound_s);

}  // namespace headrace::plan
