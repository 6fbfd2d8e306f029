// Finds the owner of a TCP socket of this host, by sock_diag(7) or the kernel's tables
// (/proc/net/tcp and tcp6). Any thread.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <istream>
#include <optional>
#include <string_view>

namespace headrace::service {

// One end of a connection. IPv4 addresses are mapped into IPv6, since a socket of one family may be
// connected with one of the other.
struct SocketEnd {
  std::array<std::uint8_t, 16> address{};
  std::uint16_t port = 0;

  friend bool operator==(const SocketEnd&, const SocketEnd&) = default;
};

// One line of a table.
struct SocketRow {
  SocketEnd own;
  SocketEnd other;
  bool listens = false;
  std::uint32_t uid = 0;
  // 0: no process has the socket, because it was closed or not accepted yet. The kernel reports uid
  // 0 for it then, whoever made it.
  std::uint64_t inode = 0;

  friend bool operator==(const SocketRow&, const SocketRow&) = default;
};

// Nothing if it is no address of IPv4 or IPv6.
std::optional<SocketEnd> SocketEndOf(const sockaddr_storage& address);

// Nothing if it is no such line, as the heading.
std::optional<SocketRow> ParseSocketRow(std::string_view line);
// The uid of the socket at `own` that is connected with `other`, or that listens if there is none.
// Nothing if no process has such a socket.
std::optional<std::uint32_t> FindSocketOwner(std::istream& table, const SocketEnd& own,
                                             const std::optional<SocketEnd>& other);

// The same of this process's network namespace: asked of the kernel for the one socket, from the
// tables only where the kernel is not built to answer.
std::optional<std::uint32_t> OwnerOfConnected(const SocketEnd& own, const SocketEnd& other);
// The same for the socket that listens at `own`, or at every address, where it has not accepted the
// connection from `other`, an end of this process, yet.
std::optional<std::uint32_t> OwnerOfListening(const SocketEnd& own, const SocketEnd& other);

}  // namespace headrace::service
