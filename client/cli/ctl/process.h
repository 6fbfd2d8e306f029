// Whether the service's process is there, as the kernel says; the board cannot know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/base/clock.h"

namespace headrace::ctl {

enum class Liveness {
  kRunning,
  kStopped,  // by a signal or a debugger: it holds its sockets and answers nothing
  kGone,
};

// "running", "stopped by a signal", "gone".
std::string_view LivenessName(Liveness liveness);

// What /proc/PID/stat says: the state letter and the start, in clock ticks after boot.
struct ProcessStat {
  char state = '?';
  std::uint64_t start_ticks = 0;
};

// Parses the text of /proc/PID/stat; a program's name in it may hold blanks and parentheses.
std::optional<ProcessStat> ParseStat(std::string_view text);

// What became of process `pid`, which wrote at `started_ns` (CLOCK_MONOTONIC) that it had started.
// A process that began later than that has only got the same number.
Liveness LookAtProcess(std::int32_t pid, TimeNs started_ns);

}  // namespace headrace::ctl
