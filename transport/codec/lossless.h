// Lossless compression of float32. The gradients in a block have similar exponents, so exponents
// are coded in 3 bits each; signs and fractions are stored as they are.
//
// A range is cut into blocks of kCodecBlock (256) elements. Elements after the last whole block are
// stored as they are. The first byte of a block is its form:
//   0  all elements are +0. No more bytes follow.
//   1  coded, see below.
//   2  all elements as they are, 1024 bytes.
// A block of form 1 continues with these parts, in this order:
//   1 byte       E, the largest exponent of its elements
//   1 byte       number of exceptions
//   64 bytes     the lower 2 bytes, little endian, of each of 32 words of 24 bits
//   32 bytes     the upper byte of each of these words
//   512 bytes    the lower 2 bytes, little endian, of each element
//   256 bytes    for each element one byte: the sign in bit 7, the upper 7 bits of the fraction
//   below 1 byte each  the exponents of the exceptions, in the order of their elements
// Bits 3b to 3b + 2 of word j are the code of element 32 b + j. A code c below 7 means the exponent
// E - c; 7 means that the element is an exception.
// The bytes are the same on all machines and for all SIMD targets.
//
// Stateless: any thread, any number at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/codec/block_size.h"

namespace headrace::transport {

// Where the encoding is written to. `fits` becomes false, and `size` is undefined, when the
// encoding would be as large as the elements or larger, also if that is estimated from the first
// blocks.
struct LosslessWriter {
  std::byte* out = nullptr;
  std::size_t size_max = 0;  // limit; less than the size of the elements
  std::size_t size = 0;
  std::uint64_t count = 0;  // elements so far
  bool fits = true;
};

// The rest of an encoding. May hold any bytes.
struct LosslessReader {
  std::span<const std::byte> in;
  bool is_plain = false;    // the elements follow as they are
  bool makes_sense = true;  // false after invalid bytes
};

// Encodes the next `count` elements of a range. `count` is a multiple of kCodecBlock, except in the
// last call.
void EncodeLossless(const float* values, std::uint64_t count, LosslessWriter& to);
// Decodes in the same portions. Invalid bytes clear `makes_sense` and leave `out` undefined.
void DecodeLossless(LosslessReader& from, std::uint64_t count, float* out);

// For those who decode blocks in any order: where each of an encoding of `count` elements begins,
// and where the elements behind them do. Returns false, and `begins` is undefined, where the bytes
// are not such an encoding as a whole. `begins` has room for LosslessBeginsCount(count).
bool FindLosslessBlocks(std::span<const std::byte> in, std::uint64_t count,
                        std::span<std::uint32_t> begins);
constexpr std::size_t LosslessBeginsCount(std::uint64_t count) {
  return static_cast<std::size_t>(count / kCodecBlock) + 1;
}

}  // namespace headrace::transport
