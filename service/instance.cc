#include "service/instance.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

namespace headrace::service {
namespace {

// A holder that leaves removes its lock file, perhaps between our open and our lock; then the lock
// is on a file that nobody else can find, and we begin again.
constexpr int kLockAttemptsMax = 16;
constexpr mode_t kDirectoryMode = 0755;

std::string LockPath(const std::string& socket_path) { return socket_path + ".lock"; }

Status CheckLength(const std::string& path) {
  constexpr std::size_t kLengthMax = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kLengthMax) return {};
  return Error(Code::kInvalidArgument, fmt::format("socket path of {} bytes, at most {} fit: {}",
                                                   path.size(), kLengthMax, path));
}

Status MakeDirectory(const std::string& socket_path) {
  const std::filesystem::path directory = std::filesystem::path(socket_path).parent_path();
  if (::mkdir(directory.c_str(), kDirectoryMode) == 0) {
    // Whatever the umask says: clients of all users must get through to the socket.
    if (::chmod(directory.c_str(), kDirectoryMode) == 0) return {};
    return SystemError("chmod " + directory.string(), errno);
  }
  if (errno == EEXIST) return {};
  return SystemError("mkdir " + directory.string(), errno);
}

// Whether the open file is still the one at `path`.
bool StillAt(int fd, const std::string& path) {
  struct stat opened {};
  struct stat found {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &found) == 0 &&
         opened.st_ino == found.st_ino && opened.st_dev == found.st_dev;
}

Error HeldBy(int fd, const std::string& socket_path) {
  std::array<char, 256> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size() - 1, 0);
  std::string holder(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  if (holder.empty()) holder = "a service that is just starting";
  return Error(Code::kAlreadyExists,
               fmt::format("the socket {} is held by {}: stop it first, or give this one another "
                           "socket",
                           socket_path, holder));
}

Result<UniqueFd> TakeLock(const std::string& socket_path) {
  const std::string path = LockPath(socket_path);
  for (int attempt = 0; attempt < kLockAttemptsMax; ++attempt) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd) return SystemError("open " + path, errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return HeldBy(fd.get(), socket_path);
      return SystemError("flock " + path, errno);
    }
    if (StillAt(fd.get(), path)) return fd;
  }
  return Error(Code::kBusy, fmt::format("{}: the lock file was replaced {} times while locking it",
                                        path, kLockAttemptsMax));
}

Status SignLock(int fd, std::string_view program) {
  const std::string text = fmt::format("pid {} ({}) since {:%Y-%m-%dT%H:%M:%SZ}\n", ::getpid(),
                                       program, fmt::gmtime(std::time(nullptr)));
  if (::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return SystemError("write the lock file", errno);
  }
  return {};
}

// Someone who listens without holding the lock is not a service of ours; taking its socket away
// would break it.
Status CheckNobodyListens(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SystemError("socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EAGAIN) {
    return {};
  }
  ucred owner{};
  socklen_t size = sizeof owner;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &owner, &size);
  return Error(Code::kAlreadyExists,
               fmt::format("pid {} listens on {} without holding its lock file: it is no Headrace "
                           "service; give this one another socket",
                           owner.pid, path));
}

// Removes a socket that nobody holds. Returns what was done, or nothing when there was none.
Result<std::string> RemoveStaleSocket(const std::string& path) {
  struct stat state {};
  if (::lstat(path.c_str(), &state) != 0) {
    if (errno == ENOENT) return std::string();
    return SystemError("stat " + path, errno);
  }
  if (!S_ISSOCK(state.st_mode)) {
    return Error(Code::kAlreadyExists,
                 fmt::format("{} is there and is not a socket: it was left alone", path));
  }
  if (Status status = CheckNobodyListens(path); !status) return status.error();
  if (::unlink(path.c_str()) != 0) return SystemError("unlink " + path, errno);
  return fmt::format("took over the stale socket {}: nobody held its lock", path);
}

}  // namespace

Result<Instance> Instance::Claim(const std::string& socket_path, std::string_view program) {
  if (Status status = CheckLength(socket_path); !status) return status.error();
  if (Status status = MakeDirectory(socket_path); !status) return status.error();
  Result<UniqueFd> lock = TakeLock(socket_path);
  if (!lock) return lock.error();
  if (Status status = SignLock(lock->get(), program); !status) return status.error();
  Result<std::string> notice = RemoveStaleSocket(socket_path);
  if (!notice) {
    ::unlink(LockPath(socket_path).c_str());
    return notice.error();
  }
  Instance instance(socket_path, std::move(lock).value());
  instance.notice_ = std::move(notice).value();
  return instance;
}

Instance::~Instance() {
  if (!lock_) return;
  ::unlink(socket_path_.c_str());
  // Before the lock is given up, so that nobody who locks it next loses its file to us.
  ::unlink(LockPath(socket_path_).c_str());
}

}  // namespace headrace::service
