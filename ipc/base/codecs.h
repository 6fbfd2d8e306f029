// The codecs that gradients may cross the network in: their numbers stand in plans and messages,
// their names in requests of clients, in the configuration and on screens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace {

enum class Codec : std::uint8_t {
  kNone = 0,
  kBFloat16 = 1,  // 2 bytes an element
  kFloat16 = 2,   // likewise
  kInt8 = 3,      // 1 byte, and a scale for each 256
  kInt4 = 4,      // half a byte, likewise
};

inline constexpr std::array<std::string_view, 5> kCodecNames = {"none", "bf16", "fp16", "int8",
                                                                "int4"};

constexpr bool IsCodec(std::uint8_t value) { return value < kCodecNames.size(); }

// "int8".
constexpr std::string_view Name(Codec codec) {
  return kCodecNames[static_cast<std::size_t>(codec)];
}

constexpr std::optional<Codec> CodecNamed(std::string_view name) {
  for (std::size_t number = 0; number < kCodecNames.size(); ++number) {
    if (kCodecNames[number] == name) return static_cast<Codec>(number);
  }
  return std::nullopt;
}

}  // namespace headrace
