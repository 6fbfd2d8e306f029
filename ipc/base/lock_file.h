// The lock of a path that one process holds at a time: flock(2) on `PATH.lock`. The service holds
// those of its socket and its board (BOARD.md); whoever may read the file, which are its user and
// its group, can ask for its state, from any pid namespace and whatever the holder's pid is there.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

enum class LockState : std::uint8_t {
  kAbsent,  // no such file, or not readable: its holder has left in order, or there was none
  kFree,    // the holder has died
  kHeld,
};

std::string LockFileOf(const std::string& path);

// Makes no file. Has the lock for a moment where nobody else has: a service waits for that.
LockState LockStateOf(const std::string& path);

}  // namespace headrace
