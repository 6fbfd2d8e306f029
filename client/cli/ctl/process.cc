#include "client/cli/ctl/process.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>

#include "ipc/base/lock_file.h"

namespace headrace::ctl {
namespace {

// Start times have the grain of a clock tick; a second is far below what it takes to reuse a pid.
constexpr TimeNs kStartSlack = kSecond;

TimeNs ReadClock(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

}  // namespace

std::string_view LivenessName(Liveness liveness) {
  switch (liveness) {
    case Liveness::kRunning:
      return "running";
    case Liveness::kStopped:
      return "stopped by a signal";
    case Liveness::kGone:
      return "gone";
    case Liveness::kUnseen:
      return "running in another pid namespace";
  }
  return "";
}

std::optional<ProcessStat> ParseStat(std::string_view text) {
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  std::istringstream fields{std::string(text.substr(name_end + 1))};
  ProcessStat stat;
  fields >> stat.state;
  // The state is field 3 of proc(5), the start is field 22.
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  if (!(fields >> stat.start_ticks)) return std::nullopt;
  return stat;
}

Liveness LivenessOfProcess(std::int32_t pid, TimeNs started_ns) {
  if (pid <= 0) return Liveness::kGone;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::optional<ProcessStat> stat = ParseStat(text);
  if (!stat) return Liveness::kGone;
  const TimeNs suspended_ns = ReadClock(CLOCK_BOOTTIME) - ReadClock(CLOCK_MONOTONIC);
  const TimeNs tick_ns = kSecond / ::sysconf(_SC_CLK_TCK);
  const TimeNs began_ns = static_cast<TimeNs>(stat->start_ticks) * tick_ns - suspended_ns;
  if (began_ns > started_ns + kStartSlack) return Liveness::kGone;
  if (stat->state == 'Z' || stat->state == 'X') return Liveness::kGone;
  return stat->state == 'T' || stat->state == 't' ? Liveness::kStopped : Liveness::kRunning;
}

Liveness LivenessOfService(const std::string& board_path, std::int32_t pid, TimeNs started_ns) {
  const LockState lock = LockStateOf(board_path);
  if (lock == LockState::kFree) return Liveness::kGone;
  const Liveness liveness = LivenessOfProcess(pid, started_ns);
  return lock == LockState::kHeld && liveness == Liveness::kGone ? Liveness::kUnseen : liveness;
}

}  // namespace headrace::ctl
