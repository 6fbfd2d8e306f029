// Whether the service's process is there, as the kernel says.
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
  kUnseen,  // it runs, but in a pid namespace of its own: its pid means nothing here
};

// "running", "stopped by a signal", "gone", "running in another pid namespace".
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
Liveness LivenessOfProcess(std::int32_t pid, TimeNs started_ns);

// What became of the service that writes the board: it holds the board's lock while it lives. Of a
// board without one, such as a copy, the pid has to say.
Liveness LivenessOfService(const std::string& board_path, std::int32_t pid, TimeNs started_ns);

// Whether it writes its board.
constexpr bool IsRunning(Liveness liveness) {
  return liveness == Liveness::kRunning || liveness == Liveness::kUnseen;
}

}  // namespace headrace::ctl
