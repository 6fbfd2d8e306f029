// What the status page shows, as JSON. STATUS.md has every key.
#pragma once

#include <cstddef>
#include <string>

#include "ipc/board.h"
#include "ipc/board_reading.h"

namespace headrace::service {

// Bounds the timelines of all jobs together; each has an equal part, within these bounds. The
// page asks once a second, so that this is what it costs.
struct TimelineBound {
  std::size_t all;
  std::size_t job_min;
  std::size_t job_max;
  std::size_t OfEach(std::size_t jobs) const;
};
inline constexpr TimelineBound kTimelineBlocks{.all = 640, .job_min = 24, .job_max = 320};
inline constexpr TimelineBound kTimelinePasses{.all = 256, .job_min = 16, .job_max = 96};

// A pure function of the reading and the rings of the recorder. Always valid UTF-8.
std::string WriteStatus(const ipc::BoardReading& reading, const ipc::BoardLayout& layout);

}  // namespace headrace::service
