// What gradients look like while they cross the network, where fewer bytes are wanted than float32
// has.
//
// A range of elements is encoded in blocks of kCodecBlock, the last one filled up with zeros; every
// block takes the same number of bytes, so the size depends on nothing but the count. Blocks are
// alike on all machines, whatever SIMD target wrote them, and decode to the same bits everywhere.
//
//   bf16, fp16   2 bytes an element, rounded to nearest even; finite values beyond the format's
//                largest become that one.
//   int8, int4   a float32 scale, then each element as round(value / scale) in [-127, 127] or
//                [-7, 7]; the block's largest magnitude is 127 or 7 times the scale.
//
// An element that is infinite or NaN stays so in bf16 and fp16; in int8 and int4 its block is NaN
// as a whole, so that nobody takes what overflowed for a gradient.
//
// Error feedback: what an encoding leaves out is kept in `residual` and added the next time, so
// that nothing is lost over many iterations. Where a value was not finite its residual is 0 again.
//
// Stateless: any thread, any number at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/base/codecs.h"

namespace headrace::transport {

inline constexpr std::size_t kCodecBlock = 256;  // elements

// Bytes of one block. Not of kNone, which has no encoding.
std::size_t EncodedBlockSize(Codec codec);
constexpr std::uint64_t CodecBlocks(std::uint64_t count) {
  return (count + kCodecBlock - 1) / kCodecBlock;
}
// Bytes of `count` float32 elements.
std::size_t EncodedSize(Codec codec, std::uint64_t count);
// Bytes on their way for each byte of float32, but for the filling of last blocks; 1 of kNone.
double EncodedShare(Codec codec);
// The largest error of one element, as a share of the largest magnitude in its block.
double ErrorBound(Codec codec);

// Writes EncodedSize(count) bytes: the elements plus their residuals, which become what was left
// out. A null `residual` adds nothing and keeps nothing. Memory is aligned to float, no more.
void Encode(Codec codec, const float* values, float* residual, std::uint64_t count, std::byte* out);

// out = the sum of what the inputs encode, in their order, divided by `divisor`; with `onto`, out's
// own values are the first of the sum.
void DecodeSum(Codec codec, std::span<const std::byte* const> inputs, std::uint64_t count,
               bool onto, std::uint32_t divisor, float* out);

}  // namespace headrace::transport
