#include "service/peers/socket_owner.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/fd.h"

namespace headrace::service {
namespace {

constexpr std::array kTables = {"/proc/self/net/tcp", "/proc/self/net/tcp6"};
// States of TCP, as the kernel numbers them.
constexpr std::uint32_t kEstablished = 1;
constexpr std::uint32_t kSynReceived = 3;
constexpr std::uint32_t kListens = 10;
constexpr std::uint32_t kNewSynReceived = 12;
constexpr std::size_t kAddressDigits = 8;  // of IPv4, and of each quarter of IPv6
constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text, int base) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc() || at != end) return std::nullopt;
  return number;
}

// Takes the first field away from `line`; empty if there is none.
std::string_view NextField(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view field = line.substr(0, line.find(' '));
  line.remove_prefix(field.size());
  return field;
}

// The kernel prints each 32 bits of an address as a number of this machine's byte order.
std::optional<SocketEnd> ParseEnd(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon != kAddressDigits && colon != 4 * kAddressDigits) return std::nullopt;
  const auto port = ParseNumber<std::uint16_t>(text.substr(colon + 1), 16);
  if (!port) return std::nullopt;
  SocketEnd end{.port = *port};
  std::size_t at = 0;
  if (colon == kAddressDigits) {
    std::ranges::copy(kMapped, end.address.begin());
    at = kMapped.size();
  }
  for (std::size_t digit = 0; digit < colon; digit += kAddressDigits) {
    const auto quarter = ParseNumber<std::uint32_t>(text.substr(digit, kAddressDigits), 16);
    if (!quarter) return std::nullopt;
    std::memcpy(&end.address[at], &*quarter, sizeof *quarter);
    at += sizeof *quarter;
  }
  return end;
}

std::optional<std::uint32_t> FindInTables(const SocketEnd& own,
                                          const std::optional<SocketEnd>& other) {
  for (const char* const path : kTables) {
    std::ifstream table(path);
    if (const auto uid = FindSocketOwner(table, own, other); uid) return uid;
  }
  return std::nullopt;
}

// The socket that the kernel finds for a segment from `other` to `own`: the one that is connected
// with both ends, or else the one that listens at `own`, in the order in which it would be chosen.
// The tables take milliseconds on a machine with much memory, and who connects decides how often
// they are read.
struct Diagnosis {
  bool found = false;
  bool listens = false;
  // To be accepted, if no process has it: a closed one is in another state.
  bool waits = false;
  std::uint64_t inode = 0;
  std::uint32_t uid = 0;

  // As the tables have it: a socket that no process has is nobody's.
  std::optional<std::uint32_t> owner() const {
    return found && inode != 0 ? std::optional(uid) : std::nullopt;
  }
};
Diagnosis Diagnose(const SocketEnd& own, const SocketEnd& other) {
  const UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!socket) return {};
  struct Question {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } question{};
  const bool is_v4 = std::ranges::equal(kMapped, std::span(own.address).first(kMapped.size()));
  const std::size_t skipped = is_v4 ? kMapped.size() : 0;
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.request.sdiag_family = is_v4 ? AF_INET : AF_INET6;
  question.request.sdiag_protocol = IPPROTO_TCP;
  question.request.idiag_states = UINT32_MAX;
  inet_diag_sockid& id = question.request.id;
  id.idiag_sport = htons(own.port);
  id.idiag_dport = htons(other.port);
  std::memcpy(id.idiag_src, &own.address[skipped], own.address.size() - skipped);
  std::memcpy(id.idiag_dst, &other.address[skipped], other.address.size() - skipped);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (::send(socket.get(), &question, sizeof question, 0) != sizeof question) return {};
  struct {
    nlmsghdr header;
    inet_diag_msg socket;
    std::array<std::byte, 4096> rest;  // attributes that nobody asked for
  } answer;
  // It is there when the question was sent.
  const ssize_t size = ::recv(socket.get(), &answer, sizeof answer, MSG_DONTWAIT);
  if (size < static_cast<ssize_t>(offsetof(decltype(answer), rest))) return {};
  if (answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return {};
  const std::uint32_t state = answer.socket.idiag_state;
  const bool listens = state == kListens;
  if (!listens && answer.socket.id.idiag_dport != id.idiag_dport) return {};
  return {.found = true,
          .listens = listens,
          .waits = state == kEstablished || state == kSynReceived || state == kNewSynReceived,
          .inode = answer.socket.idiag_inode,
          .uid = answer.socket.idiag_uid};
}

Diagnosis DiagnoseConnected(const SocketEnd& own, const SocketEnd& other) {
  const Diagnosis there = Diagnose(own, other);
  return there.listens ? Diagnosis() : there;
}

}  // namespace

std::optional<SocketEnd> SocketEndOf(const sockaddr_storage& address) {
  SocketEnd end;
  if (address.ss_family == AF_INET) {
    sockaddr_in from{};
    std::memcpy(&from, &address, sizeof from);
    std::ranges::copy(kMapped, end.address.begin());
    std::memcpy(&end.address[kMapped.size()], &from.sin_addr, sizeof from.sin_addr);
    end.port = ntohs(from.sin_port);
    return end;
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 from{};
    std::memcpy(&from, &address, sizeof from);
    std::memcpy(end.address.data(), &from.sin6_addr, end.address.size());
    end.port = ntohs(from.sin6_port);
    return end;
  }
  return std::nullopt;
}

// "   0: 0100007F:1E35 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 12345 ..."
std::optional<SocketRow> ParseSocketRow(std::string_view line) {
  NextField(line);  // its number
  const auto own = ParseEnd(NextField(line));
  const auto other = ParseEnd(NextField(line));
  const auto state = ParseNumber<std::uint32_t>(NextField(line), 16);
  for (int skipped = 0; skipped < 3; ++skipped) NextField(line);  // queues, timer, retransmits
  const auto uid = ParseNumber<std::uint32_t>(NextField(line), 10);
  NextField(line);  // timeout
  const auto inode = ParseNumber<std::uint64_t>(NextField(line), 10);
  if (!own || !other || !state || !uid || !inode) return std::nullopt;
  return SocketRow{
      .own = *own, .other = *other, .listens = *state == kListens, .uid = *uid, .inode = *inode};
}

std::optional<std::uint32_t> FindSocketOwner(std::istream& table, const SocketEnd& own,
                                             const std::optional<SocketEnd>& other) {
  std::string line;
  while (std::getline(table, line)) {
    const std::optional<SocketRow> row = ParseSocketRow(line);
    if (!row || row->inode == 0 || row->own != own) continue;
    if (other ? !row->listens && row->other == *other : row->listens) return row->uid;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> OwnerOfConnected(const SocketEnd& own, const SocketEnd& other) {
  if (const Diagnosis there = DiagnoseConnected(own, other); there.found) return there.owner();
  // Not there, or a kernel that is not built to answer: which of both, this end says.
  if (DiagnoseConnected(other, own).found) return std::nullopt;
  return FindInTables(own, other);
}

std::optional<std::uint32_t> OwnerOfListening(const SocketEnd& own, const SocketEnd& other) {
  // From port 0 nothing is connected.
  const Diagnosis listener = Diagnose(own, {.address = other.address});
  // Asked afterwards: as long as the connection waits for its listener, that one is there and is
  // the same. Somebody may have accepted and closed it, and another user listen there now.
  const Diagnosis there = DiagnoseConnected(own, other);
  if (there.found && there.inode != 0) return there.uid;
  if (there.found) return there.waits && listener.listens ? listener.owner() : std::nullopt;
  if (DiagnoseConnected(other, own).found) return std::nullopt;  // the kernel answers
  // The kernel's own order: the address itself, then every address of its family, then all.
  std::vector<SocketEnd> ends = {own};
  if (std::ranges::equal(kMapped, std::span(own.address).first(kMapped.size()))) {
    ends.push_back({.port = own.port});
    std::ranges::copy(kMapped, ends.back().address.begin());
  }
  ends.push_back({.port = own.port});
  for (const SocketEnd& end : ends) {
    if (const auto uid = FindInTables(end, std::nullopt); uid) return uid;
  }
  return std::nullopt;
}

}  // namespace headrace::service
