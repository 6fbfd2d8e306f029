// What the status page shows, as JSON. STATUS.md has every key.
#pragma once

#include <string>

#include "ipc/board.h"
#include "service/watch/board_reading.h"

namespace headrace::service {

// Of each job's timeline, at most so much; the page shows the last iterations.
inline constexpr std::size_t kTimelineBlocksMax = 160;
inline constexpr std::size_t kTimelinePassesMax = 48;

// A pure function of the reading and the rings of the recorder. Always valid UTF-8.
std::string WriteStatus(const BoardReading& reading, const ipc::BoardLayout& layout);

}  // namespace headrace::service
