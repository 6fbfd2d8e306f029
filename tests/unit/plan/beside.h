// An iteration as it happens, event by event, while computing is slower beside blocks: what
// forecasts are held against. It shares cost lines with the planner and nothing else.
#pragma once

#include "service/plan/draft.h"
#include "service/plan/recording.h"

namespace headrace::plan {

// How long one recorded iteration takes with these blocks. Computing loses the shares
// `contention` of its rate while any block is in a stage in the node, and between nodes.
double SecondsBeside(const Workload& work, const Route& route, const Draft& draft,
                     const RecordedIteration& recorded, const ContentionShares& contention);
// The mean over all recorded iterations.
double MeanSecondsBeside(const Workload& work, const Route& route, const Draft& draft,
                         const Recording& recording);

}  // namespace headrace::plan
