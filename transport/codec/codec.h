// Encodings of float32 gradients in fewer bytes, for the way between nodes.
//
// A range of elements is encoded in blocks of kCodecBlock, the last one filled up with zeros; every
// block takes the same number of bytes, so the size depends only on the count. Blocks are the same
// on all machines, whatever SIMD target wrote them, and decode to the same bits everywhere.
//
//   bf16, fp16   2 bytes an element, rounded to nearest even; finite values beyond the format's
//                largest become that one.
//   int8, int4   a float32 scale, then each element as round(value / scale) in [-127, 127] or
//                [-7, 7]; the block's largest magnitude is 127 or 7 times the scale. The
//                -stochastic ones round up or down by chance, in the proportion that is right on
//                average.
//   fp8-e4m3, fp8-e5m2
//                a float32 scale, then each element divided by it as a float of 8 bits with 3 or 2
//                bits of fraction; the block's largest magnitude is 448 or 57344 times the scale.
//   sign         a float32 scale, the mean of the magnitudes, then a bit for each element's sign.
//   topk         the `parameter` elements of largest magnitude: a byte for the place of each, then
//                each as bf16. The others are left for later, whole.
//   randomk      `parameter` elements by chance, as float32, one of each share of the block. Their
//                places follow from the seed, so that sums of encodings are encodings of sums.
//   lossless     not here but in lossless.h: its blocks are of different sizes.
//   powersgd     not here but in low_rank.h: it has no blocks.
//
// An element that is infinite or NaN stays so in bf16, fp16 and topk; in other codecs all
// transmitted elements of its block become NaN, so that an overflow is not mistaken for a gradient.
//
// Error feedback: what an encoding leaves out is kept in `residual` and added the next time, so
// that nothing is lost over many iterations. The residual of a value that is not finite is reset to
// 0.
//
// Stateless: any thread, any number at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/base/codec_error.h"
#include "ipc/base/codecs.h"
#include "transport/codec/block_size.h"

namespace headrace::transport {

// What chance depends on: the same bits wherever and whenever both are the same.
struct CodecSeed {
  std::uint64_t seed = 0;
  std::uint64_t first_block = 0;  // the number of the range's first block in what it is part of
};

// Bytes of one block. Not of those without HasBlocks, which have none of a fixed size.
std::size_t EncodedBlockSize(Codec codec);
constexpr std::uint64_t CodecBlocks(std::uint64_t count) {
  return (count + kCodecBlock - 1) / kCodecBlock;
}
// Bytes of `count` float32 elements; of kLossless at most; of kPowerSgd, elements of factors.
std::size_t EncodedSize(Codec codec, std::uint64_t count);
// Bytes on their way for each byte of float32, but for the filling of last blocks; 1 of kNone, of
// kLossless, which takes what it takes, and of kPowerSgd, of which it depends on the matrix.
double EncodedShare(Codec codec);
using headrace::ErrorBound;

// Writes EncodedSize(count) bytes: the elements plus their residuals, which become what was left
// out. A null `residual` adds nothing and keeps nothing. Memory is aligned to float, no more. Of
// codecs with blocks only, as is all that follows.
void Encode(Codec codec, const float* values, float* residual, std::uint64_t count, std::byte* out,
            const CodecSeed& seed = {});

// How many of so many encoded blocks had a value that is not finite, as far as what was encoded
// tells: elements that topk and randomk leave out do not.
std::uint64_t NotFiniteBlocks(Codec codec, const std::byte* encoded, std::uint64_t blocks_count);

// out = the sum of what the inputs encode, in their order, divided by `divisor`; with `onto`, out's
// own values are the first of the sum. Inputs may be any bytes at all, of which all machines make
// the same; a NaN that comes of them is that of reduce/reduce.h. `seed` is that of Encode.
void DecodeSum(Codec codec, std::span<const std::byte* const> inputs, std::uint64_t count,
               bool onto, std::uint32_t divisor, float* out, const CodecSeed& seed = {});

}  // namespace headrace::transport
