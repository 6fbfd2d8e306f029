#include "ipc/base/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "ipc/base/fd.h"

namespace headrace {

std::string LockFileOf(const std::string& path) { return path + ".lock"; }

LockState LockStateOf(const std::string& path) {
  const UniqueFd fd(::open(LockFileOf(path).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return LockState::kAbsent;
  const bool held = ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return held ? LockState::kHeld : LockState::kFree;
}

}  // namespace headrace
