#include "service/config/file_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>

#include "ipc/base/lock_file.h"

namespace headrace::service {
namespace {

// A holder that leaves removes its lock file, perhaps between our open and our lock; then the lock
// is on a file that nobody else can find, and we begin again.
constexpr int kLockAttemptsMax = 16;
// Whoever asks for the lock's state (ipc/base/lock_file.h) shares it for a moment, which is long on
// a machine that is busy: it is waited for longer than a service that ends, whose lock nobody
// shares.
constexpr int kLooksMax = 10;
constexpr int kSharedLooksMax = 500;
constexpr std::chrono::milliseconds kLookTime{20};
// Users outside of the group could else take a lock that a killed service left, and keep it.
constexpr mode_t kLockMode = 0640;

// Whether the open file is still the one at `path`.
bool StillAt(int fd, const std::string& path) {
  struct stat opened {};
  struct stat found {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &found) == 0 &&
         opened.st_ino == found.st_ino && opened.st_dev == found.st_dev;
}

Error HeldBy(int fd, const std::string& path, std::string_view what) {
  std::array<char, 256> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size() - 1, 0);
  std::string holder(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  if (holder.empty()) holder = "a service that is just starting";
  return Error(
      Code::kAlreadyExists,
      fmt::format("the {0} {1} is held by {2}: stop it first, or give this one another {0}", what,
                  path, holder));
}

// Whether nobody has the lock for himself. Leaves it to all.
bool IsShared(int fd) {
  const bool shared = ::flock(fd, LOCK_SH | LOCK_NB) == 0;
  if (shared) ::flock(fd, LOCK_UN);
  return shared;
}

// Takes the lock, unless somebody has it for longer than some looks. errno says why not.
bool TryLock(int fd) {
  int held = 0;
  int shared = 0;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return false;
    ++(IsShared(fd) ? shared : held);
    if (held == kLooksMax || shared == kSharedLooksMax) {
      errno = EWOULDBLOCK;
      return false;
    }
    std::this_thread::sleep_for(kLookTime);
  }
  return true;
}

Result<UniqueFd> OpenLocked(const std::string& locked, std::string_view what) {
  const std::string path = LockFileOf(locked);
  for (int attempt = 0; attempt < kLockAttemptsMax; ++attempt) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kLockMode));
    if (!fd) return SystemError("open " + path, errno);
    if (!TryLock(fd.get())) {
      if (errno == EWOULDBLOCK) return HeldBy(fd.get(), locked, what);
      return SystemError("flock " + path, errno);
    }
    if (!StillAt(fd.get(), path)) continue;
    // One that an older release left may be readable for all.
    if (::fchmod(fd.get(), kLockMode) != 0)
      return SystemError("set the permissions of " + path, errno);
    return fd;
  }
  return Error(Code::kBusy, fmt::format("{}: the lock file was replaced {} times while locking it",
                                        path, kLockAttemptsMax));
}

Status WriteHolder(int fd, std::string_view program) {
  const std::string text = fmt::format("pid {} ({}) since {:%Y-%m-%dT%H:%M:%SZ}\n", ::getpid(),
                                       program, fmt::gmtime(std::time(nullptr)));
  if (::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return SystemError("write the lock file", errno);
  }
  return {};
}

}  // namespace

Result<FileLock> FileLock::Acquire(const std::string& path, std::string_view what,
                                   std::string_view program) {
  Result<UniqueFd> fd = OpenLocked(path, what);
  if (!fd) return fd.error();
  FileLock lock(LockFileOf(path), std::move(fd).value());
  if (Status status = WriteHolder(lock.fd_.get(), program); !status) return status.error();
  return lock;
}

FileLock::~FileLock() {
  // Before the lock is given up, so that nobody who locks it next loses its file to us.
  if (fd_) ::unlink(lock_path_.c_str());
}

}  // namespace headrace::service
