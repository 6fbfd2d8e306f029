// The codecs that gradients may cross the network in: their numbers stand in plans and messages,
// their names in requests of clients, in the configuration and on screens. What each does to its
// elements is in transport/codec/codec.h.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// A value of two bytes: which codec, and its parameter where it has one, 0 where it has none.
// `Codec::kTopK` alone has the parameter's default.
struct Codec {
  enum Kind : std::uint8_t {
    kNone = 0,
    kBFloat16 = 1,        // 2 bytes an element
    kFloat16 = 2,         // likewise
    kInt8 = 3,            // 1 byte, and a scale for each 256
    kInt4 = 4,            // half a byte, likewise
    kFloat8E4M3 = 5,      // 1 byte, and a scale for each 256
    kFloat8E5M2 = 6,      // likewise
    kInt8Stochastic = 7,  // as kInt8, rounded up or down by chance, right on average
    kInt4Stochastic = 8,  // likewise
    kSign = 9,            // 1 bit, and a scale for each 256
    kTopK = 10,           // of each 256 the `parameter` largest
    kRandomK = 11,        // of each 256 `parameter`, the same on all nodes
    kLossless = 12,       // the same bits, in at most 4 bytes an element
    kPowerSgd = 13,       // of a matrix two factors, of `parameter` elements a row and a column
  };

  Kind kind = kNone;
  std::uint8_t parameter = 0;

  constexpr Codec() = default;
  // Implicit: a kind is the codec with its default parameter.
  constexpr Codec(Kind of_kind);  // NOLINT(google-explicit-constructor)
  constexpr Codec(Kind of_kind, std::uint8_t with) : kind(of_kind), parameter(with) {}

  friend constexpr bool operator==(const Codec&, const Codec&) = default;
};

// By number; those with a parameter are named with it: "topk:8".
inline constexpr std::string_view kCodecNames[] = {"none",
                                                   "bf16",
                                                   "fp16",
                                                   "int8",
                                                   "int4",
                                                   "fp8-e4m3",
                                                   "fp8-e5m2",
                                                   "int8-stochastic",
                                                   "int4-stochastic",
                                                   "sign",
                                                   "topk",
                                                   "randomk",
                                                   "lossless",
                                                   "powersgd"};

// Elements that are kept of each 256: at most, and where nothing is said (3 %).
inline constexpr std::uint8_t kKeptMax = 64;
inline constexpr std::uint8_t kKeptDefault = 8;
// The rank of powersgd: at most, and where nothing is said.
inline constexpr std::uint8_t kRankMax = 32;
inline constexpr std::uint8_t kRankDefault = 4;

// 0: it has none.
constexpr std::uint8_t ParameterMax(Codec::Kind kind) {
  if (kind == Codec::kPowerSgd) return kRankMax;
  return kind == Codec::kTopK || kind == Codec::kRandomK ? kKeptMax : std::uint8_t{0};
}
constexpr bool HasParameter(Codec::Kind kind) { return ParameterMax(kind) > 0; }

constexpr Codec::Codec(Kind of_kind)
    : kind(of_kind),
      parameter(of_kind == Codec::kPowerSgd ? kRankDefault
                : HasParameter(of_kind)     ? kKeptDefault
                                            : std::uint8_t{0}) {}

// Whether these two bytes, which come from a client or a peer, name a codec.
constexpr bool IsCodec(std::uint8_t kind, std::uint8_t parameter) {
  if (kind >= std::size(kCodecNames)) return false;
  const std::uint8_t most = ParameterMax(static_cast<Codec::Kind>(kind));
  return parameter <= most && (parameter > 0 || most == 0);
}

// Whether what is decoded may differ from what was encoded, so that residuals are worth keeping.
constexpr bool Loses(const Codec& codec) {
  return codec.kind != Codec::kNone && codec.kind != Codec::kLossless;
}

// Whether it encodes elements in blocks of equal size (transport/codec/codec.h).
constexpr bool HasBlocks(const Codec& codec) {
  return Loses(codec) && codec.kind != Codec::kPowerSgd;
}

// Whether sums that are given again and again come out wrong in the long run unless what was left
// out is added to the next one. An operation, which nobody gives again, has no residual.
constexpr bool NeedsResidual(const Codec& codec) {
  return Loses(codec) && codec.kind != Codec::kBFloat16 && codec.kind != Codec::kFloat16 &&
         codec.kind != Codec::kInt8Stochastic && codec.kind != Codec::kInt4Stochastic;
}

// A codec as the value of SteeringKind::kCompress, and back; nothing where that is none.
constexpr std::uint64_t SteeringValue(const Codec& codec) {
  return std::uint64_t{codec.kind} | std::uint64_t{codec.parameter} << 8U;
}
constexpr std::optional<Codec> CodecOfValue(std::uint64_t value) {
  const auto kind = static_cast<std::uint8_t>(value & 0xFFU);
  const auto parameter = static_cast<std::uint8_t>(value >> 8U & 0xFFU);
  if (value > 0xFFFFU || !IsCodec(kind, parameter)) return std::nullopt;
  return Codec(static_cast<Codec::Kind>(kind), parameter);
}

// "int8", "topk:8".
std::string Name(const Codec& codec);
// Also of names without a parameter, "topk", which have the default; nothing where there is no such
// codec, or its parameter is out of bounds.
std::optional<Codec> CodecNamed(std::string_view name);

}  // namespace headrace
