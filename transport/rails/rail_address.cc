#include "transport/rails/rail_address.h"

#include <cstring>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::string_view kMagic("HRRAILS\x01", 8);
constexpr std::size_t kSizeMax = 64 << 10;  // of one rail's address

template <typename Number>
void Append(std::string& bytes, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes.push_back(static_cast<char>(number >> 8 * i & 0xFF));
  }
}

// Takes a number from the front of the bytes; false where they are too few.
template <typename Number>
bool Cut(std::string_view& bytes, Number& number) {
  if (bytes.size() < sizeof(Number)) return false;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    value |= std::uint64_t{static_cast<std::uint8_t>(bytes[i])} << 8 * i;
  }
  number = static_cast<Number>(value);
  bytes.remove_prefix(sizeof(Number));
  return true;
}

Error Refuse() {
  return {Code::kUnavailable,
          "the other node's address is not one of several rails: give both nodes as many `rails`, "
          "and the same "
          "release"};
}

}  // namespace

std::string EncodeRails(const RailAddress& address) {
  HR_CHECK(!address.rails.empty() && address.rails.size() <= kWireRailsMax, address.rails.size());
  std::string bytes(kMagic);
  Append(bytes, address.wire_id);
  Append(bytes, static_cast<std::uint8_t>(address.rails.size()));
  for (const std::string& rail : address.rails) {
    HR_CHECK(rail.size() <= kSizeMax, rail.size());
    Append(bytes, static_cast<std::uint32_t>(rail.size()));
    bytes += rail;
  }
  return bytes;
}

Result<RailAddress> DecodeRails(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) return Refuse();
  bytes.remove_prefix(kMagic.size());
  RailAddress address;
  std::uint8_t count = 0;
  if (!Cut(bytes, address.wire_id) || !Cut(bytes, count)) return Refuse();
  if (count == 0 || count > kWireRailsMax) return Refuse();
  for (std::uint8_t i = 0; i < count; ++i) {
    std::uint32_t size = 0;
    if (!Cut(bytes, size) || size > kSizeMax || size > bytes.size()) return Refuse();
    address.rails.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  if (!bytes.empty()) return Refuse();
  return address;
}

}  // namespace headrace::transport
