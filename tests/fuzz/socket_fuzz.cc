// Arbitrary bytes on the service's socket: control, alone but whole, with a real event loop. A
// connection may be closed for what it says; the next one must be served.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "client/cli/ctl/control.h"
#include "ipc/base/check.h"
#include "ipc/base/fd.h"
#include "tests/unit/service/rpc/stand.h"

namespace {

using namespace headrace;  // NOLINT: this program has no names of its own

// An honest client asks after so many others.
constexpr std::uint64_t kInputsPerPing = 32;
constexpr timeval kPatience{.tv_sec = 10, .tv_usec = 0};

UniqueFd Connect(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  HR_CHECK(path.size() < sizeof address.sun_path, path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  HR_CHECK(::connect(fd.get(), generic, sizeof address) == 0, path, errno);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  return fd;
}

// Sends all of it and reads until the service closes, which it does once we have said our last.
void Throw(const std::string& path, const std::uint8_t* bytes, std::size_t size) {
  const UniqueFd fd = Connect(path);
  for (std::size_t sent = 0; sent < size;) {
    const ssize_t count = ::send(fd.get(), bytes + sent, size - sent, MSG_NOSIGNAL);
    if (count < 0 && (errno == EPIPE || errno == ECONNRESET)) return;
    HR_CHECK(count > 0, errno);
    sent += static_cast<std::size_t>(count);
  }
  ::shutdown(fd.get(), SHUT_WR);
  char answer[4096];
  ssize_t count = 0;
  while ((count = ::recv(fd.get(), answer, sizeof answer, 0)) > 0) continue;
  HR_CHECK(count == 0 || errno == ECONNRESET, errno);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static support::ControlStand stand;
  static std::uint64_t inputs = 0;
  Throw(stand.socket_path(), bytes, size);
  if (++inputs % kInputsPerPing != 0) return 0;
  const Result<ctl::PingAnswer> answer = ctl::Ping(stand.socket_path(), 10 * kSecond);
  HR_CHECK(answer.ok(), answer.ok() ? "" : answer.error().text());
  stand.dispatch().Clear();
  stand.watch().Clear();
  stand.mapping().Clear();
  return 0;
}
