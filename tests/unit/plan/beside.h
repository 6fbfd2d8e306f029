// An iteration as it happens, event by event, while computing is slower beside blocks: what
// forecasts are held against. It shares cost lines with the planner and nothing else.
#pragma once

#include "service/plan/draft.h"
#include "service/plan/recording.h"

namespace headrace::plan {

// How long one recorded iteration takes with these blocks. Computing loses the share `contention`
// of its rate while a block is under way, from its first stage's begin to its last one's end.
double SecondsBeside(const Workload& work, const Route& route, const Draft& draft,
                     const RecordedIteration& recorded, double contention);
// The mean over all recorded iterations.
double MeanSecondsBeside(const Workload& work, const Route& route, const Draft& draft,
                         const Recording& recording);

}  // namespace headrace::plan
