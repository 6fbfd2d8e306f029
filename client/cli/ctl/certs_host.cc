#include "client/cli/ctl/certs_host.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/asn1.h>

#include <algorithm>
#include <array>

namespace headrace::ctl {
namespace {

constexpr std::size_t kHostMax = 253;  // of a name in the DNS

Error NameRefused(const std::string& host) {
  return OpensslError(Code::kInternal, "add the name " + host);
}

// The bytes of an IP address, or nothing when it is a name.
std::string AddressBytes(const std::string& host) {
  std::array<char, 16> bytes{};
  if (::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1) return {bytes.data(), 4};
  if (::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1) return {bytes.data(), 16};
  return {};
}

}  // namespace

Status AddHost(GENERAL_NAMES& names, const std::string& host) {
  const bool valid = !host.empty() && host.size() <= kHostMax &&
                     std::all_of(host.begin(), host.end(),
                                 [](char letter) { return letter > ' ' && letter <= '~'; });
  if (!valid) {
    return Error(Code::kInvalidArgument,
                 fmt::format("\"{}\" is neither a host's name nor an address", host));
  }
  const std::string address = AddressBytes(host);
  const std::string& bytes = address.empty() ? host : address;
  UniqueName name(GENERAL_NAME_new());
  ASN1_STRING* text =
      address.empty() ? ASN1_IA5STRING_new() : static_cast<ASN1_STRING*>(ASN1_OCTET_STRING_new());
  if (!name || text == nullptr ||
      ASN1_STRING_set(text, bytes.data(), static_cast<int>(bytes.size())) != 1) {
    ASN1_STRING_free(text);
    return NameRefused(host);
  }
  GENERAL_NAME_set0_value(name.get(), address.empty() ? GEN_DNS : GEN_IPADD, text);
  if (sk_GENERAL_NAME_push(&names, name.get()) <= 0) return NameRefused(host);
  static_cast<void>(name.release());  // the list has it now
  return {};
}

}  // namespace headrace::ctl
