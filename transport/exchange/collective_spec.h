// The parameters of a transfer that must be equal on all nodes of its group. Compared with the
// header of each message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ipc/base/halves.h"
#include "ipc/base/matrix.h"
#include "transport/codec/codec.h"
#include "transport/exchange/wire.h"
#include "transport/transport.h"

namespace headrace::transport {

inline constexpr std::uint64_t kTransferBytesMax = std::uint64_t{1} << 40;

// In normal form: what makes no difference to a kind has its default.
struct CollectiveSpec {
  Collective kind = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  Reduction reduction = Reduction::kSum;
  std::uint32_t root = 0;
  std::uint32_t root_rank = 0;
  std::uint64_t count = 0;
  std::uint64_t block_count = 0;
  std::uint64_t operation_count = 0;
  std::uint32_t divisor = 0;
  Codec codec = Codec::kNone;
  Codec asked_codec = Codec::kNone;  // of what is not encoded: see Transfer
  std::uint64_t rows = 0;            // of a matrix that is factored
  std::uint64_t place = 0;           // where servers sum: see Transfer

  bool encoded() const { return codec != Codec::kNone; }
  // Two factors of it cross, one behind the other, and are summed as they are (factor_sum.h).
  constexpr bool factored() const { return codec.kind == Codec::kPowerSgd; }
  // Elements that cross.
  std::uint64_t SentCount() const { return factored() ? FactorsCount(codec, rows, count) : count; }
  // Goes the way and in the pieces that it would go without a codec, so that sums are the same
  // bits; messages are of different sizes.
  bool lossless() const { return codec == Codec::kLossless; }
  // The bytes of `elements` of it, or of its factors, on their way; at most, where it is lossless.
  std::size_t SizeOfElements(std::uint64_t elements) const {
    if (encoded()) return EncodedSize(codec, elements);
    return static_cast<std::size_t>(elements) * SizeOf(dtype);
  }
  std::size_t Bytes() const { return SizeOfElements(SentCount()); }
  friend bool operator==(const CollectiveSpec&, const CollectiveSpec&) = default;
};

constexpr bool RunsBetweenNodes(Collective kind) {
  return kind == Collective::kAllReduce || IsHalf(kind) || kind == Collective::kReduce ||
         kind == Collective::kBroadcast || kind == Collective::kBarrier;
}

// Encodings are of float32, and their sums are sums of numbers. Only some matrices have factors.
constexpr bool MayBeEncoded(const CollectiveSpec& spec) {
  if (spec.factored() && !HasFactors(spec.codec, spec.rows, spec.count)) return false;
  return spec.kind == Collective::kAllReduce && spec.dtype == DType::kFloat32 &&
         (spec.reduction == Reduction::kSum || spec.reduction == Reduction::kAverage);
}

// Sums that something may be left out of, or was, also where halves carry them.
constexpr bool MayHaveResidual(const CollectiveSpec& spec) {
  return (spec.kind == Collective::kAllReduce || spec.kind == Collective::kReduceScatter) &&
         spec.dtype == DType::kFloat32 &&
         (spec.reduction == Reduction::kSum || spec.reduction == Reduction::kAverage);
}

CollectiveSpec SpecOf(const Transfer& transfer);
// Nothing if the header's fields are invalid. `members_count`: the members that have data.
std::optional<CollectiveSpec> SpecOf(const MessageHeader& header, std::uint32_t members_count);
void WriteSpec(const CollectiveSpec& spec, MessageHeader& header);

// For people: "all_reduce of 1024 float32 (sum)".
std::string Describe(const CollectiveSpec& spec);

}  // namespace headrace::transport
