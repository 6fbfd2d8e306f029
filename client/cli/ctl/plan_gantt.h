// One iteration under a plan as a picture of text: a line for each block and pass, predicted above
// measured in the same characters. Pure.
#pragma once

#include <string>

#include "client/cli/ctl/snapshot.h"

namespace headrace::ctl {

// At most `columns` wide, as many lines as the plan has blocks on the board, at most
// kGanttBlocksMax. Without UTF-8: '-' predicted, '_' measured, '=' both.
inline constexpr std::size_t kGanttBlocksMax = 64;
std::string PlanGantt(const Snapshot& snapshot, const ipc::PlanRow& plan, std::size_t columns,
                      bool utf8);

}  // namespace headrace::ctl
