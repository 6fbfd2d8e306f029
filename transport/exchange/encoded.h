// Encodes and decodes elements of a transfer. Their memory may consist of several runs; the
// encoding has the elements one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/codec/codec.h"
#include "transport/exchange/partition.h"
#include "transport/runs.h"
#include "transport/transport.h"

namespace headrace::transport {

// A range of a float32 transfer: the walks, over its memory and over its residual, are anywhere
// before the end of the stretch that holds its first element. Where there is no residual, its walk
// does not count.
struct EncodedRange {
  Codec codec = Codec::kNone;
  RunWalk walk;
  RunWalk residual_walk;
  Partition::Range range;  // begins where a block does
  std::byte* memory = nullptr;
  std::byte* residual = nullptr;
  std::uint64_t seed = 0;  // where something is left to chance
};

// See codec.h. Of codecs that lose.
void EncodeRange(const EncodedRange& from, std::byte* out);
void DecodeSumRange(std::span<const std::byte* const> inputs, bool onto, std::uint32_t divisor,
                    const EncodedRange& to);

// Adds the residuals to the elements, and makes them zeros. Reads only where they are zeros.
void AddResidual(const EncodedRange& range);

// Adds the squares of what was encoded of a block, and of what was left out of it, to `use`; into
// `memory`, which has room for the block, goes what the encoding says.
void SampleEncoded(const EncodedRange& range, const std::byte* encoded, CodecUse& use);

// Writes the range as it is, and returns the bytes.
std::size_t CopyRange(const EncodedRange& from, std::byte* out);
// Writes the range as lossless.h has it, or as it is where that is no shorter, and returns the
// bytes: at most those of its elements, and those only where they are as they are.
std::size_t EncodeLosslessRange(const EncodedRange& from, std::byte* out);

inline constexpr std::size_t kNowhere = SIZE_MAX;
// Reduces the elements of such messages, in their order, into the range. The range's own elements
// are added before input `own`; with kNowhere they are not. The bits are those of ReduceInto.
// Returns the index of the first malformed message; the range has the sums of those before it.
std::optional<std::size_t> ReduceLosslessRange(std::span<const std::span<const std::byte>> messages,
                                               std::size_t own, Reduction reduction,
                                               std::uint32_t divisor, const EncodedRange& to);

}  // namespace headrace::transport
