// Addresses of other services and lists in the configuration: parsed once, checked in full, written
// back in one form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"

namespace headrace::service {

inline constexpr std::uint16_t kNodePort = 7733;
inline constexpr std::size_t kNodeNameMax = 63;
inline constexpr std::size_t kPeersMax = 64;
inline constexpr std::size_t kRailsConfiguredMax = 8;

struct HostPort {
  std::string host;  // a name, an IPv4 address, or an IPv6 address without its brackets
  std::uint16_t port = 0;

  // "host:port", with brackets around an IPv6 address.
  std::string Text() const;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// "host", "host:port", "[v6]" or "[v6]:port"; kNodePort where no port is given. Port 0 is refused.
Result<HostPort> ParseHostPort(std::string_view text);
// The same for listening: also "*" for every address of this host, and port 0 for any free one.
Result<HostPort> ParseListenAddress(std::string_view text);

// Whether only this host gets there: 127.0.0.0/8, ::1, "localhost". False for names, which may lead
// anywhere.
bool IsLoopback(std::string_view host);
// Whether `host` is an address and not a name.
bool IsLiteral(std::string_view host);

// 1 to 63 bytes of printable ASCII without blanks and without the signs that lists are made of.
Status CheckNodeName(std::string_view name);

struct ConfiguredPeer {
  std::string name;
  HostPort address;
  friend bool operator==(const ConfiguredPeer&, const ConfiguredPeer&) = default;
};

// "a=10.0.0.1:7733,b=10.0.0.2"; an empty text is an empty list. Names and addresses are unique.
Result<std::vector<ConfiguredPeer>> ParsePeers(std::string_view text);
// "eth0,eth1"; an empty text is an empty list. Devices are unique.
Result<std::vector<std::string>> ParseRails(std::string_view text);

}  // namespace headrace::service
