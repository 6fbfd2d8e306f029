// Two ranks that ranks three iterations, as tests of the report and the trace want them.
#pragma once

#include <vector>

#include "client/cli/replay/run.h"

namespace headrace::replay {

Profile ToyProfile();
std::vector<RankResult> TwoRanks();

}  // namespace headrace::replay
