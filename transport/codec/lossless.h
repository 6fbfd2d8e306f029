// Float32 in fewer bytes, of which the same bits come back: gradients of a block have exponents
// near each other, and those are what is coded.
//
// A range is cut into blocks of kCodecBlock elements; what is left at its end follows as it is. A
// block begins with a byte:
//   0  all bits of all elements are 0. Nothing follows.
//   1  then the largest exponent E among its elements (a byte); how many exceptions there are (a
//      byte); of 32 words of 24 bits the lower two bytes each, little endian, and then the upper
//      byte of each: bits 3b to 3b + 2 of word j are the code of element 32 b + j; of all elements
//      the lower two bytes each, and then a byte of each: its sign above the upper 7 bits of its
//      fraction; the exponents of the exceptions, in the order of their elements. Code c below 7 is
//      the exponent E - c; 7 is an exception.
//   2  then all elements as they are, 1024 bytes.
// Blocks are alike on all machines, whatever SIMD target wrote them.
//
// Stateless: any thread, any number at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/codec/block_size.h"

namespace headrace::transport {

// What is written goes to `out`. Where it would take as many bytes as the elements themselves or
// more, or where the first blocks say so, it is given up, and `size` is of no meaning.
struct LosslessWriter {
  std::byte* out = nullptr;
  std::size_t size_max = 0;  // of all; less than the elements'
  std::size_t size = 0;
  std::uint64_t count = 0;  // elements so far
  bool fits = true;
};

// What is left to read. Any bytes at all may be there.
struct LosslessReader {
  std::span<const std::byte> in;
  bool is_plain = false;    // the elements as they are
  bool makes_sense = true;  // so far
};

// The next `count` elements of a range; a multiple of kCodecBlock but for the last.
void EncodeLossless(const float* values, std::uint64_t count, LosslessWriter& to);
// Likewise. Where what is read makes no sense, `out` has any values.
void DecodeLossless(LosslessReader& from, std::uint64_t count, float* out);

}  // namespace headrace::transport
