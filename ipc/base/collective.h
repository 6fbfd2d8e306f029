// The vocabulary of collectives: kinds, element types, reductions. The numbers stand in records,
// schemas and the C header, and never change their meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace {

enum class Collective : std::uint8_t {
  kAllReduce = 1,
  kBroadcast = 2,
  kReduceScatter = 3,
  kAllGather = 4,
  kBarrier = 5,
  kReduce = 6,
};

// A send and its receive are of two ranks only. No collective, so not of the list.
inline constexpr Collective kSend{7};
inline constexpr Collective kReceive{8};
constexpr bool IsSendOrReceive(Collective kind) { return kind == kSend || kind == kReceive; }
constexpr bool IsSendOrReceive(std::uint8_t kind) {
  return IsSendOrReceive(static_cast<Collective>(kind));
}

// Collectives that the service carries out as messages between two ranks each, so that no transport
// is asked for them: not of the list either. A parts table says what each rank has for which.
inline constexpr Collective kGather{9};
inline constexpr Collective kScatter{10};
inline constexpr Collective kAllToAll{11};
constexpr bool MovesInMessages(Collective kind) { return kind >= kGather && kind <= kAllToAll; }

enum class DType : std::uint8_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kUInt8 = 7,
};

enum class Reduction : std::uint8_t {
  kSum = 1,
  kAverage = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};

// Whether a number read from outside is one that a record may ask for.
constexpr bool IsCollective(std::uint8_t value) {
  return (value >= 1 && value <= 6) || MovesInMessages(static_cast<Collective>(value));
}
constexpr bool IsDType(std::uint8_t value) { return value >= 1 && value <= 7; }
constexpr bool IsReduction(std::uint8_t value) { return value >= 1 && value <= 5; }

constexpr bool Reduces(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kReduceScatter ||
         kind == Collective::kReduce;
}

// Whether one rank is the only source or the only target of it.
constexpr bool HasRoot(Collective kind) {
  return kind == Collective::kBroadcast || kind == Collective::kReduce || kind == kGather ||
         kind == kScatter;
}

// Whether the type has fractions.
constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

constexpr std::size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
  }
  return 0;
}

// Names as tables, logs and Python spell them: "all_reduce", "float32", "sum".
std::string_view Name(Collective kind);
std::string_view Name(DType dtype);
std::string_view Name(Reduction reduction);

}  // namespace headrace
