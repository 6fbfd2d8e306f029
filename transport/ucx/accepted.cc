#include "transport/ucx/accepted.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>

#include "transport/ucx/options.h"

namespace headrace::transport {
namespace {

int IntOption(int fd, int name) {
  int value = 0;
  socklen_t size = sizeof(value);
  return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

void Set(int fd, int level, int name, int value) {
  static_cast<void>(setsockopt(fd, level, name, &value, sizeof(value)));
}

}  // namespace

std::set<int> TcpSockets(SocketKind kind) {
  std::set<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = entry.path().filename().string();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    const int listens = kind == SocketKind::kListening ? 1 : 0;
    if (IntOption(fd, SO_ACCEPTCONN) == listens && IntOption(fd, SO_PROTOCOL) == IPPROTO_TCP) {
      found.insert(fd);
    }
  }
  return found;
}

void KeepAcceptedAlive(const std::set<int>& listening) {
  for (const int fd : listening) {
    Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveSeconds);
    Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveSeconds);
    Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveCount);
    Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  }
}

void FailUnacknowledged(const std::set<int>& sockets, int after_ms) {
  if (after_ms == 0) return;
  for (const int fd : sockets) Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, after_ms);
}

void KeepQueuesShort(const std::set<int>& sockets) {
  for (const int fd : sockets) Set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytesMax);
}

}  // namespace headrace::transport
