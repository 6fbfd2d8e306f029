#include "service/instance.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace headrace::service {
namespace {

constexpr mode_t kDirectoryMode = 0755;

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

Result<Instance> Instance::Claim(const std::string& socket_path, const std::string& board_path,
                                 std::string_view program) {
  if (Status status = CheckLength(socket_path); !status) return status.error();
  if (Status status = MakeDirectory(socket_path); !status) return status.error();
  Result<FileLock> socket_lock = FileLock::Acquire(socket_path, "socket", program);
  if (!socket_lock) return socket_lock.error();
  Result<FileLock> board_lock = FileLock::Acquire(board_path, "board", program);
  if (!board_lock) return board_lock.error();
  Result<std::string> notice = RemoveStaleSocket(socket_path);
  if (!notice) return notice.error();
  Instance instance(socket_path, std::move(socket_lock).value(), std::move(board_lock).value());
  instance.notice_ = std::move(notice).value();
  return instance;
}

Instance::~Instance() {
  // Before the lock is given up.
  if (socket_lock_.held()) ::unlink(socket_path_.c_str());
}

}  // namespace headrace::service
