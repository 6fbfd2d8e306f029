// Slow, obvious ways to the optimum of one serial lane, to hold the sweep against.
#pragma once

#include "service/plan/cost.h"
#include "service/plan/workload.h"

namespace headrace::plan {

// Every set of cuts times every grouping of phase 2, blocks cut at any fraction of a byte.
double BruteForceCuts(const Workload& work, const CostPiece& line);

// Every schedule of blocks whatsoever: at each moment any whole numbers of elements of the ready
// tensors, or waiting for the next gradient. For instances of a few elements.
double BruteForceSchedules(const Workload& work, const CostPiece& line);

// Every order of blocks of whole elements on two lanes one behind the other, each block on the
// second as soon as it has left the first and the lane is free. For instances of a few elements.
double BruteForceTwoStages(const Workload& work, const CostPiece& first, const CostPiece& second);

// The same with a third stage, on the first lane again and with its line: a block returns there
// once it has left the second. Blocks pass each stage in one order. The first lane may work on
// either stage or wait, whichever is best. For instances of a few elements.
double BruteForceThreeStages(const Workload& work, const CostPiece& first, const CostPiece& second);

// The full dynamic program: all states (cut, group) tensor by tensor with the least number of
// startups, inside a bisection on the iteration time.
double DynamicProgram(const Workload& work, const CostPiece& line);

}  // namespace headrace::plan
