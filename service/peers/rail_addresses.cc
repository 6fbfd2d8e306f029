#include "service/peers/rail_addresses.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <memory>

#include "ipc/base/foreign_text.h"
#include "service/cluster/job_directory.h"
#include "service/config/config_address.h"

namespace headrace::service {
namespace {

// As text; empty for one that nobody reaches from elsewhere. IPv6 only where both are reached.
std::string TextOf(const sockaddr* address, bool with_v6) {
  if (address == nullptr) return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof v4);
    if (::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size()) == nullptr) return {};
  } else if (address->sa_family == AF_INET6 && with_v6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, address, sizeof v6);
    if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) return {};
    if (::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size()) == nullptr) return {};
  }
  return IsLoopback(text.data()) ? std::string() : std::string(text.data());
}

}  // namespace

std::vector<std::string> RailAddresses(const std::string& listens_at, unsigned port,
                                       const std::vector<std::string>& devices) {
  const Result<HostPort> place = ParseListenAddress(listens_at);
  if (!place) return {};
  const bool all = place->host == "*" || place->host == "::";
  if (!all && place->host != "0.0.0.0") return {};
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> found(first, ::freeifaddrs);
  std::vector<std::string> addresses;
  for (const std::string& device : devices) {
    for (const ifaddrs* each = found.get(); each != nullptr; each = each->ifa_next) {
      const std::string host = device == each->ifa_name ? TextOf(each->ifa_addr, all) : "";
      if (host.empty()) continue;
      addresses.push_back(HostPort{host, static_cast<std::uint16_t>(port)}.Text());
      break;
    }
  }
  return addresses;
}

std::string WrongRailAddress(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    const Result<HostPort> place = ParseHostPort(address);
    if (place && IsLiteral(place->host)) continue;
    return fmt::format("the address \"{}\" of a rail (\"10.0.0.2:7733\" is one)",
                       Printable(address, kPlaceAddressMax));
  }
  return {};
}

}  // namespace headrace::service
