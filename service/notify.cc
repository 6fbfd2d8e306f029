#include "service/notify.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "ipc/base/fd.h"

namespace headrace::service {

Status NotifySystemd(std::string_view path, std::string_view state) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || (path[0] != '/' && path[0] != '@') ||
      path.size() >= sizeof address.sun_path) {
    return Error(Code::kInvalidArgument,
                 fmt::format("NOTIFY_SOCKET is \"{}\": systemd names a path or an abstract socket, "
                             "unset it elsewhere",
                             path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (!socket || ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
                          reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    return Error(Code::kUnavailable,
                 fmt::format("tell systemd {} at {}: {}", state, path, std::strerror(errno)));
  }
  return {};
}

}  // namespace headrace::service
