#include "ipc/base/codec_choice.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace {
namespace {

constexpr std::string_view kAuto = "auto:";
constexpr std::uint64_t kPlanChooses = std::uint64_t{1} << 63U;
constexpr unsigned kCodecBits = 16;
constexpr std::uint64_t kCodecMask = 0xFFFF;

}  // namespace

std::vector<Codec> AllowedCodecs::List() const {
  std::vector<Codec> codecs;
  for (std::uint64_t rest = value; rest != 0; rest >>= kCodecBits) {
    codecs.push_back(CodecOfValue(rest & kCodecMask).value_or(Codec()));
  }
  return codecs;
}

void AllowedCodecs::Add(const Codec& codec) {
  unsigned bits = 0;
  while (value >> bits != 0) bits += kCodecBits;
  value |= SteeringValue(codec) << bits;
}

bool AreAllowedCodecs(std::uint64_t value) {
  if (value >> (kCodecBits * AllowedCodecs::kMax) != 0) return false;
  std::vector<Codec> before;
  for (std::uint64_t rest = value; rest != 0; rest >>= kCodecBits) {
    const std::optional<Codec> codec = CodecOfValue(rest & kCodecMask);
    if (!codec || *codec == Codec::kNone) return false;
    if (std::ranges::find(before, *codec) != before.end()) return false;
    before.push_back(*codec);
  }
  return true;
}

std::uint64_t ChoiceValue(const CodecChoice& choice) {
  return choice.allowed.empty() ? SteeringValue(choice.codec) : kPlanChooses | choice.allowed.value;
}

std::optional<CodecChoice> ChoiceOfValue(std::uint64_t value) {
  if ((value & kPlanChooses) != 0) {
    const AllowedCodecs allowed{value & ~kPlanChooses};
    if (allowed.empty() || !AreAllowedCodecs(allowed.value)) return std::nullopt;
    return CodecChoice(allowed);
  }
  const std::optional<Codec> codec = CodecOfValue(value);
  return codec ? std::optional(CodecChoice(*codec)) : std::nullopt;
}

std::string ChoiceName(const CodecChoice& choice) {
  if (choice.allowed.empty()) return Name(choice.codec);
  std::string name(kAuto);
  for (const Codec& codec : choice.allowed.List()) {
    if (name.size() > kAuto.size()) name += ',';
    name += Name(codec);
  }
  return name;
}

std::optional<CodecChoice> ChoiceNamed(std::string_view name) {
  if (!name.starts_with(kAuto)) {
    const std::optional<Codec> codec = CodecNamed(name);
    return codec ? std::optional(CodecChoice(*codec)) : std::nullopt;
  }
  name.remove_prefix(kAuto.size());
  AllowedCodecs allowed;
  for (unsigned place = 0;; ++place) {
    const std::size_t comma = name.find(',');
    const std::optional<Codec> codec = CodecNamed(name.substr(0, comma));
    if (!codec || *codec == Codec::kNone || place == AllowedCodecs::kMax) return std::nullopt;
    allowed.Add(*codec);
    if (comma == std::string_view::npos) break;
    name.remove_prefix(comma + 1);
  }
  if (!AreAllowedCodecs(allowed.value)) return std::nullopt;
  return CodecChoice(allowed);
}

std::string KnownCodecs() {
  return fmt::format("{}; auto:int8,bf16 leaves it to the plan which of up to {}, or none, pays",
                     fmt::join(kCodecNames, ", "), AllowedCodecs::kMax);
}

}  // namespace headrace
