#include "service/config/instance.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "ipc/base/lock_file.h"

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

std::filesystem::path DirectoryOf(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  return directory.empty() ? "." : directory;
}

// Whether files can be made there.
Status CheckDirectory(const std::filesystem::path& directory, const std::string& file) {
  if (::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return {};
  return SystemError(fmt::format("make {} in {}", file, directory.string()), errno);
}

// A directory of the socket's own is made at start-up, its parent is not.
Status CheckDirectories(const std::string& socket_path, const std::string& board_path) {
  const std::filesystem::path of_socket = DirectoryOf(socket_path);
  const std::filesystem::path of_board = DirectoryOf(board_path);
  const bool is_there = std::filesystem::exists(of_socket);
  const std::filesystem::path& wanted = is_there ? of_socket : DirectoryOf(of_socket);
  const std::string& made = is_there ? socket_path : of_socket.native();
  if (Status status = CheckDirectory(wanted, made); !status) return status;
  if (!is_there && of_board == of_socket) return {};
  return CheckDirectory(of_board, board_path);
}

// Whether a socket is there; anything else is an error.
Result<bool> FindSocket(const std::string& path) {
  struct stat state {};
  if (::lstat(path.c_str(), &state) != 0) {
    if (errno == ENOENT) return false;
    return SystemError("stat " + path, errno);
  }
  if (S_ISSOCK(state.st_mode)) return true;
  return Error(Code::kAlreadyExists,
               fmt::format("{} is there and is not a socket: it was left alone", path));
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
  const Result<bool> is_there = FindSocket(path);
  if (!is_there) return is_there.error();
  if (!*is_there) return std::string();
  if (Status status = CheckNobodyListens(path); !status) return status.error();
  if (::unlink(path.c_str()) != 0) return SystemError("unlink " + path, errno);
  return fmt::format("took over the stale socket {}: nobody held its lock", path);
}

}  // namespace

Result<bool> Instance::Check(const std::string& socket_path, const std::string& board_path) {
  if (Status status = CheckLength(socket_path); !status) return status.error();
  if (Status status = CheckDirectories(socket_path, board_path); !status) return status.error();
  const Result<bool> is_there = FindSocket(socket_path);
  if (!is_there) return is_there.error();
  const bool held = LockStateOf(socket_path) == LockState::kHeld;
  if (held || !*is_there) return held;
  const Status free = CheckNobodyListens(socket_path);
  return free ? Result<bool>(false) : Result<bool>(free.error());
}

Result<Instance> Instance::Claim(const std::string& socket_path, const std::string& board_path,
                                 std::string_view program) {
  if (const Result<bool> held = Check(socket_path, board_path); !held) return held.error();
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
