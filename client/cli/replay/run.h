// Plays all ranks of this process, each on a thread of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cli/replay/player.h"

namespace headrace::replay {

// What the board of a rank's node said at the end, while the job was still there.
struct Ending {
  std::optional<ipc::PlanRow> plan;
  std::vector<ipc::PlanBlockRow> blocks;
  std::vector<ipc::LaneRow> lanes;
};

struct Played {
  std::uint32_t rank = 0;
  Performance performance;
  Ending ending;
};

// One entry for each place, in that order; `board_paths` has the board of each place's node. The
// error is the one that came first: the others follow from it.
Result<std::vector<Played>> PlayRanks(const Score& score, const std::vector<Place>& places,
                                      const std::vector<std::string>& board_paths);

}  // namespace headrace::replay
