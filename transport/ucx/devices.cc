#include "transport/ucx/devices.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

namespace headrace::transport {
namespace {

struct Address {
  int family = AF_UNSPEC;
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  bool operator==(const Address&) const = default;

  bool IsOfEveryInterface() const {
    return std::ranges::all_of(bytes, [](unsigned char byte) { return byte == 0; });
  }
};

Address Parse(const std::string& text) {
  Address address;
  for (const int family : {AF_INET, AF_INET6}) {
    if (::inet_pton(family, text.c_str(), address.bytes.data()) == 1) address.family = family;
  }
  return address;
}

Address AddressOf(const sockaddr* raw) {
  Address address;
  if (raw == nullptr) return address;
  if (raw->sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, raw, sizeof four);
    std::memcpy(address.bytes.data(), &four.sin_addr, sizeof four.sin_addr);
    address.family = AF_INET;
  } else if (raw->sa_family == AF_INET6) {
    sockaddr_in6 six{};
    std::memcpy(&six, raw, sizeof six);
    std::memcpy(address.bytes.data(), &six.sin6_addr, sizeof six.sin6_addr);
    address.family = AF_INET6;
  }
  return address;
}

// All of 127.0.0.0/8 is the loopback interface's, which is configured with one address of it.
Address AsConfigured(Address address) {
  if (address.family != AF_INET || address.bytes[0] != 127) return address;
  return Parse("127.0.0.1");
}

// The addresses that a literal or a host name stands for; none if it cannot be resolved.
std::vector<Address> AddressesOf(const std::string& text) {
  if (const Address literal = Parse(text); literal.family != AF_UNSPEC) return {literal};
  if (text.empty() || text == "*") return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;  // otherwise each address comes once for each kind of socket
  addrinfo* first = nullptr;
  if (::getaddrinfo(text.c_str(), nullptr, &hints, &first) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(first, ::freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    addresses.push_back(AddressOf(each->ai_addr));
  }
  return addresses;
}

std::string InterfaceOf(const Address& address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, ::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (AddressOf(each->ifa_addr) != address) continue;
    const std::string_view name = each->ifa_name;
    return std::string(name.substr(0, name.find(':')));  // "eth0:1" is another address of eth0
  }
  return "";
}

std::vector<std::string> NamesIn(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;  // no such folder: no RDMA
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::string DevicesAt(const std::string& address, const std::string& rdma_folder) {
  std::vector<std::string> interfaces;
  for (const Address& wanted : AddressesOf(address)) {
    if (wanted.family == AF_UNSPEC || wanted.IsOfEveryInterface()) return "";
    const std::string name = InterfaceOf(AsConfigured(wanted));
    if (!name.empty() && std::ranges::find(interfaces, name) == interfaces.end()) {
      interfaces.push_back(name);
    }
  }
  if (interfaces.empty()) return "";
  std::string devices = fmt::format("{}", fmt::join(interfaces, ","));
  for (const std::string& device : NamesIn(rdma_folder)) {
    const std::filesystem::path ports = std::filesystem::path(rdma_folder) / device / "ports";
    for (const std::string& port : NamesIn(ports)) devices += fmt::format(",{}:{}", device, port);
  }
  return devices;
}

}  // namespace headrace::transport
