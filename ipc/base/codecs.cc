#include "ipc/base/codecs.h"

#include <charconv>

namespace headrace {

std::string Name(const Codec& codec) {
  std::string name(kCodecNames[codec.kind]);
  if (HasParameter(codec.kind)) name += ":" + std::to_string(codec.parameter);
  return name;
}

std::optional<Codec> CodecNamed(std::string_view name) {
  const std::size_t colon = name.find(':');
  const std::string_view plain = name.substr(0, colon);
  for (std::size_t place = 0; place < std::size(kCodecNames); ++place) {
    if (kCodecNames[place] != plain) continue;
    const auto number = static_cast<std::uint8_t>(place);
    Codec codec(static_cast<Codec::Kind>(number));
    if (colon == std::string_view::npos) return codec;
    const std::string_view digits = name.substr(colon + 1);
    const char* const end = digits.data() + digits.size();
    const auto [last, error] = std::from_chars(digits.data(), end, codec.parameter);
    if (error != std::errc() || last != end || !HasParameter(codec.kind)) return std::nullopt;
    return IsCodec(number, codec.parameter) ? std::optional(codec) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace headrace
