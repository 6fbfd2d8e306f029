#include "service/config/notify.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
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

Result<TimeNs> WatchdogPatience(std::string_view microseconds) {
  constexpr std::uint64_t kMax = std::uint64_t{24} * 3600 * 1'000'000;
  std::uint64_t value = 0;
  const char* end = microseconds.data() + microseconds.size();
  const auto [rest, failure] = std::from_chars(microseconds.data(), end, value);
  if (failure != std::errc{} || rest != end || value == 0 || value > kMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("WATCHDOG_USEC is \"{}\": systemd gives microseconds, up to a day; "
                             "unset it elsewhere",
                             microseconds));
  }
  return static_cast<TimeNs>(value) * kMicrosecond;
}

}  // namespace headrace::service
