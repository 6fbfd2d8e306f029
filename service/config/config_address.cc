#include "service/config/config_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace headrace::service {
namespace {

constexpr std::size_t kHostMax = 253;  // of a name in the DNS
constexpr std::size_t kDeviceMax = 31;

Error Wrong(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

bool IsLetterOrDigit(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9');
}

bool IsIpv4(std::string_view host) {
  in_addr address{};
  return ::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
}

bool IsIpv6(std::string_view host) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1;
}

// Letters, digits, '-', '_' and '.', as names of hosts and containers have them. Not what kj takes
// for the begin of a path: "unix:1" would be a socket in a file.
bool IsHostName(std::string_view host) {
  return !host.empty() && host != "unix" && host != "unix-abstract" && host.size() <= kHostMax &&
         IsLetterOrDigit(host.front()) && std::all_of(host.begin(), host.end(), [](char letter) {
           return IsLetterOrDigit(letter) || letter == '-' || letter == '_' || letter == '.';
         });
}

// A resolver takes digits alone for an IPv4 address; people who write them mean a port.
bool IsNumber(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(),
                                      [](char letter) { return letter >= '0' && letter <= '9'; });
}

// Host and port as they stand in the text; no port: nothing.
struct Split {
  std::string_view host;
  std::optional<std::string_view> port;
  bool bracketed = false;
};

std::optional<Split> SplitAddress(std::string_view text) {
  Split split;
  std::string_view rest;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    split = {.host = text.substr(1, end - 1), .port = {}, .bracketed = true};
    rest = text.substr(end + 1);
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    split.host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  if (rest.empty()) return split;
  if (rest.front() != ':') return std::nullopt;
  split.port = rest.substr(1);
  return split;
}

Result<HostPort> Parse(std::string_view text, bool listening) {
  const std::string form = fmt::format("\"{}\": give host:port, like node-b:{} or [fe80::1]:{}",
                                       text.substr(0, kHostMax), kNodePort, kNodePort);
  if (IsIpv6(text)) {
    return Wrong(fmt::format("\"{}\" may end in a port or not: put [ ] around the address", text));
  }
  const std::optional<Split> split = SplitAddress(text);
  if (!split) return Wrong(form);
  if (!split->bracketed && IsNumber(split->host)) {
    return Wrong(
        fmt::format("\"{}\" has a number where the host should be: write {}:{} for that port",
                    text.substr(0, kHostMax), listening ? "*" : "host", split->host));
  }
  const bool everywhere = listening && split->host == "*";
  const bool valid = split->bracketed ? IsIpv6(split->host) : IsHostName(split->host);
  if (!valid && !everywhere) return Wrong(form);
  HostPort address{.host = std::string(split->host), .port = kNodePort};
  if (!split->port) return address;
  const char* end = split->port->data() + split->port->size();
  const auto [stop, error] = std::from_chars(split->port->data(), end, address.port);
  if (error != std::errc() || stop != end || (address.port == 0 && !listening)) {
    return Wrong(fmt::format("\"{}\" has the port \"{}\", outside of 1 to 65535",
                             text.substr(0, kHostMax), split->port->substr(0, 16)));
  }
  return address;
}

std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    parts.push_back(text.substr(0, comma));
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) parts.emplace_back();
  }
  return parts;
}

}  // namespace

std::string HostPort::Text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Result<HostPort> ParseHostPort(std::string_view text) { return Parse(text, false); }
Result<HostPort> ParseListenAddress(std::string_view text) { return Parse(text, true); }

bool IsLiteral(std::string_view host) { return IsIpv4(host) || IsIpv6(host); }

bool IsLoopback(std::string_view host) {
  return host == "localhost" || host == "::1" || (IsIpv4(host) && host.starts_with("127."));
}

Status CheckNodeName(std::string_view name) {
  if (name.empty() || name.size() > kNodeNameMax) {
    return Wrong(
        fmt::format("a node's name of {} bytes, 1 to {} are allowed", name.size(), kNodeNameMax));
  }
  const auto bad = std::find_if(name.begin(), name.end(), [](char letter) {
    return letter <= ' ' || letter > '~' || letter == ',' || letter == '=' || letter == '/';
  });
  if (bad == name.end()) return {};
  return Wrong(
      fmt::format("the node's name has byte {:#04x} at {}: only printable ASCII without "
                  "blanks, \",\", \"=\" and \"/\" is allowed",
                  static_cast<unsigned char>(*bad), bad - name.begin()));
}

Result<std::vector<ConfiguredPeer>> ParsePeers(std::string_view text) {
  std::vector<ConfiguredPeer> peers;
  for (const std::string_view part : SplitList(text)) {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return Wrong(fmt::format("\"{}\" is not a peer: give name=host:port", part));
    }
    ConfiguredPeer peer{.name = std::string(part.substr(0, equals)), .address = {}};
    if (Status status = CheckNodeName(peer.name); !status) return status.error();
    Result<HostPort> address = ParseHostPort(part.substr(equals + 1));
    if (!address) return address.error().Within("peer " + peer.name);
    peer.address = std::move(address).value();
    for (const ConfiguredPeer& other : peers) {
      if (other.name == peer.name) return Wrong("two peers are called " + peer.name);
      if (other.address == peer.address) {
        return Wrong(fmt::format("the peers {} and {} are both at {}", other.name, peer.name,
                                 peer.address.Text()));
      }
    }
    peers.push_back(std::move(peer));
  }
  if (peers.size() > kPeersMax) {
    return Wrong(fmt::format("{} peers, at most {} are possible", peers.size(), kPeersMax));
  }
  return peers;
}

Result<std::vector<std::string>> ParseRails(std::string_view text) {
  std::vector<std::string> rails;
  for (const std::string_view part : SplitList(text)) {
    const bool valid = !part.empty() && part.size() <= kDeviceMax &&
                       std::all_of(part.begin(), part.end(), [](char letter) {
                         return letter > ' ' && letter <= '~' && letter != '/';
                       });
    if (!valid) {
      return Wrong(fmt::format("\"{}\" is not a network device: give names like eth0,eth1",
                               part.substr(0, kDeviceMax)));
    }
    if (std::find(rails.begin(), rails.end(), part) != rails.end()) {
      return Wrong(fmt::format("the device {} is listed twice: name each device once", part));
    }
    rails.emplace_back(part);
  }
  if (rails.size() > kRailsConfiguredMax) {
    return Wrong(
        fmt::format("{} devices, at most {} are possible", rails.size(), kRailsConfiguredMax));
  }
  return rails;
}

}  // namespace headrace::service
