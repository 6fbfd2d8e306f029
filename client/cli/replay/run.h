// Plays all ranks of this process, each on a thread of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cli/replay/replay_rank.h"

namespace headrace::replay {

// What the board of a rank's node said at the end, while the job was still there.
struct FinalBoard {
  std::optional<ipc::PlanRow> plan;
  std::vector<ipc::PlanBlockRow> blocks;
  std::vector<ipc::LaneRow> lanes;
};

struct RankResult {
  std::uint32_t rank = 0;
  ReplayResult result;
  FinalBoard board;
};

// One entry for each of `attach`, in that order; `board_paths` has the board of each one's node.
// The error is the one that came first: the others follow from it.
Result<std::vector<RankResult>> ReplayRanks(const ReplayConfig& config,
                                            const std::vector<AttachOptions>& attach,
                                            const std::vector<std::string>& board_paths);

}  // namespace headrace::replay
