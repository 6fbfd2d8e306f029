#include "tests/support/nccl_double/messages.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace headrace::nccl_double {
namespace {

constexpr int kBacklog = 128;

socklen_t Address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  // Begins with a zero byte: no file.
  const std::size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

bool SendAll(int socket, const void* bytes, std::size_t size) {
  const auto* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = ::send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int socket, void* bytes, std::size_t size) {
  auto* at = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = ::recv(socket, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

std::optional<UniqueFd> Listen(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t size = Address(name, address);
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return std::nullopt;
  }
  return fd;
}

std::optional<UniqueFd> Connect(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t size = Address(name, address);
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return std::nullopt;
  }
  return fd;
}

bool Say(int socket, Header header, std::span<const std::byte> bytes) {
  header.size = bytes.size();
  return SendAll(socket, &header, sizeof header) && SendAll(socket, bytes.data(), bytes.size());
}

bool Hear(int socket, Message& message) {
  if (!ReceiveAll(socket, &message.header, sizeof message.header)) return false;
  message.bytes.resize(message.header.size);
  return ReceiveAll(socket, message.bytes.data(), message.bytes.size());
}

}  // namespace headrace::nccl_double
