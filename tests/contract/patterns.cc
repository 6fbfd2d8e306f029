#include "tests/contract/patterns.h"

#include <array>
#include <bit>
#include <cstring>

namespace headrace::transport {
namespace {

template <class T>
void Put(std::vector<std::byte>& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

// One in five is special; of those, each pattern is as likely as any other.
template <class Bits, std::size_t kCount>
bool PickSpecial(std::mt19937_64& random, const std::array<Bits, kCount>& specials, Bits& bits) {
  if (random() % 5 != 0) return false;
  bits = specials[random() % kCount];
  return true;
}

constexpr std::array<std::uint16_t, 14> kFloat16Specials = {0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00,
                                                            0x7C01, 0xFFFF, 0x0001, 0x83FF, 0x0400,
                                                            0x7BFF, 0xFBFF, 0x3C01, 0x1234};
constexpr std::array<std::uint16_t, 14> kBFloat16Specials = {0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0,
                                                             0x7F81, 0xFFFF, 0x0001, 0x807F, 0x0080,
                                                             0x7F7F, 0xFF7F, 0x3F81, 0x7FFF};
constexpr std::array<std::uint32_t, 11> kFloat32Specials = {
    0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001,
    0xFFFFFFFF, 0x00000001, 0x807FFFFF, 0x7F7FFFFF, 0x3F800001};
constexpr std::array<std::uint64_t, 10> kFloat64Specials = {
    0x0000000000000000, 0x8000000000000000, 0x7FF0000000000000, 0xFFF0000000000000,
    0x7FF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF, 0x0000000000000001,
    0x7FEFFFFFFFFFFFFF, 0x3FF0000000000001};
constexpr std::array<std::uint32_t, 6> kInt32Specials = {0,          1,          0xFFFFFFFF,
                                                         0x7FFFFFFF, 0x80000000, 0xFFFF0001};
constexpr std::array<std::uint64_t, 6> kInt64Specials = {
    0, 1, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFF00000001};
constexpr std::array<std::uint8_t, 5> kUInt8Specials = {0, 1, 0x7F, 0x80, 0xFF};

}  // namespace

std::vector<std::byte> AwkwardElements(DType dtype, std::size_t count, std::mt19937_64& random) {
  std::vector<std::byte> bytes(count * SizeOf(dtype));
  std::normal_distribution<double> ordinary(0.0, 2.0);
  for (std::size_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::kFloat32: {
        auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(ordinary(random)));
        PickSpecial(random, kFloat32Specials, bits);
        Put(bytes, i, bits);
        break;
      }
      case DType::kFloat64: {
        auto bits = std::bit_cast<std::uint64_t>(ordinary(random));
        PickSpecial(random, kFloat64Specials, bits);
        Put(bytes, i, bits);
        break;
      }
      case DType::kFloat16: {
        auto bits = static_cast<std::uint16_t>(random());  // any code is a number or NaN
        PickSpecial(random, kFloat16Specials, bits);
        Put(bytes, i, bits);
        break;
      }
      case DType::kBFloat16: {
        const auto wide = std::bit_cast<std::uint32_t>(static_cast<float>(ordinary(random)));
        auto bits = static_cast<std::uint16_t>(wide >> 16);
        PickSpecial(random, kBFloat16Specials, bits);
        Put(bytes, i, bits);
        break;
      }
      case DType::kInt32: {
        auto bits = static_cast<std::uint32_t>(random());
        PickSpecial(random, kInt32Specials, bits);
        Put(bytes, i, bits);
        break;
      }
      case DType::kInt64: {
        std::uint64_t bits = random();
        PickSpecial(random, kInt64Specials, bits);
        Put(bytes, i, bits);
        break;
      }
      case DType::kUInt8: {
        auto bits = static_cast<std::uint8_t>(random());
        PickSpecial(random, kUInt8Specials, bits);
        Put(bytes, i, bits);
        break;
      }
    }
  }
  return bytes;
}

}  // namespace headrace::transport
