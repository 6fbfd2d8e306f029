#include "transport/ucx/address.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

constexpr std::string_view kMagic{"HRUCX\1\0\0", 8};
constexpr std::size_t kHeadSize = 28;
constexpr std::size_t kTailSize = 8;

template <typename Number>
void Append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

template <typename Number>
Number ReadAt(std::string_view bytes, std::size_t offset) {
  Number number;
  HR_CHECK(offset <= bytes.size() && sizeof(number) <= bytes.size() - offset, offset, bytes.size());
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

Error Refused(std::string_view what) {
  return {Code::kUnavailable,
          fmt::format("the address makes no sense to a UCX wire: {}; both nodes must run the same "
                      "release and use the same kind of lane",
                      what)};
}

}  // namespace

std::uint64_t ByteSum(std::string_view bytes) {
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    sum *= 0x100000001b3U;
  }
  return sum;
}

std::string EncodeAddress(const WireAddress& address) {
  std::string bytes(kMagic);
  Append(bytes, address.wire_id);
  Append(bytes, address.settings_sum);
  Append(bytes, static_cast<std::uint32_t>(address.ucx_address.size()));
  HR_CHECK(bytes.size() == kHeadSize, bytes.size());
  bytes += address.ucx_address;
  Append(bytes, ByteSum(bytes));
  return bytes;
}

Result<WireAddress> DecodeAddress(std::string_view bytes) {
  if (bytes.size() < kHeadSize + kTailSize) {
    return Refused(fmt::format("{} bytes are too few", bytes.size()));
  }
  if (bytes.substr(0, kMagic.size()) != kMagic) return Refused("it begins with other bytes");
  const std::size_t size = ReadAt<std::uint32_t>(bytes, 24);
  if (size == 0 || size > kUcxAddressSizeMax || bytes.size() != kHeadSize + size + kTailSize) {
    return Refused(fmt::format("{} bytes hold no address of {} bytes", bytes.size(), size));
  }
  const std::size_t checked = kHeadSize + size;
  if (ByteSum(bytes.substr(0, checked)) != ReadAt<std::uint64_t>(bytes, checked)) {
    return Refused("its checksum differs");
  }
  return WireAddress{ReadAt<std::uint64_t>(bytes, 8), ReadAt<std::uint64_t>(bytes, 16),
                     std::string(bytes.substr(kHeadSize, size))};
}

}  // namespace headrace::transport
