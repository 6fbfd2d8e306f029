// One of the last iterations of a replay as a trace that Perfetto and Chrome open. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/cli/replay/run.h"

namespace headrace::replay {

// JSON: for each rank a row of computing and one of waiting; below them the blocks of the plan as
// the first rank's board measured them. The iteration is the one that this board shows, or the last
// where it shows none of the last ones; then without blocks. Times count from the begin of the
// backward pass of the rank that began it last.
std::string TraceJson(const Profile& profile, const std::vector<RankResult>& ranks);

}  // namespace headrace::replay
