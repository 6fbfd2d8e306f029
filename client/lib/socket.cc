#include "client/lib/socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace headrace::client {
namespace {

// The kernel bounds a connect to a listener whose queue is full by the send timeout.
Status SetSendTimeout(int fd, TimeNs timeout_ns) {
  timeval timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / kSecond);
  timeout.tv_usec = static_cast<suseconds_t>(timeout_ns % kSecond / kMicrosecond);
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0) {
    return SystemError("setsockopt SO_SNDTIMEO", errno);
  }
  return {};
}

Error ConnectError(const std::string& path, int error_number) {
  const Error cause = SystemError("connect to the service at " + path, error_number);
  switch (error_number) {
    case ENOENT:
      return Error(Code::kUnavailable,
                   cause.text() + ": start headraced, or set HEADRACE_SOCKET to its socket");
    case ECONNREFUSED:
      return Error(Code::kUnavailable,
                   cause.text() + ": the service that made this socket is gone: start headraced");
    case EACCES:
    case EPERM:
      return Error(Code::kPermissionDenied,
                   cause.text() +
                       ": this user may not write to the socket: ask who runs "
                       "headraced");
    case EAGAIN:
      return Error(Code::kTimeout, cause.text() +
                                       ": it listens but accepts nobody: see whether "
                                       "headraced is stopped");
    default:
      return cause;
  }
}

}  // namespace

Result<ServiceSocket> ConnectToService(const std::string& path, TimeNs timeout_ns) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error(Code::kInvalidArgument,
                 fmt::format("socket path \"{}\" has {} bytes: 1 to {} are possible", path,
                             path.size(), sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return SystemError("create a unix socket", errno);
  if (Status status = SetSendTimeout(fd.get(), timeout_ns); !status) return status.error();
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ConnectError(path, errno);
  }
  if (Status status = SetSendTimeout(fd.get(), 0); !status) return status.error();
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool known = ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  return ServiceSocket{std::move(fd), known ? peer.pid : 0};
}

}  // namespace headrace::client
