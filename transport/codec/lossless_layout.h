// Where the parts of an encoded block are; lossless.h says what they are. Shared with the kernels
// of GPUs: plain constants.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/codec/block_size.h"

namespace headrace::transport {

struct LosslessBlock {
  enum class Form : std::uint8_t { kZeros = 0, kCoded = 1, kPlain = 2 };

  static constexpr std::size_t kWords = kCodecBlock / 8;
  static constexpr std::size_t kWordsAt = 3;
  static constexpr std::size_t kUpperWordsAt = kWordsAt + 2 * kWords;
  static constexpr std::size_t kLowAt = kUpperWordsAt + kWords;
  static constexpr std::size_t kHighAt = kLowAt + 2 * kCodecBlock;
  static constexpr std::size_t kExceptionsAt = kHighAt + kCodecBlock;
  // More make a block no smaller than it is.
  static constexpr std::size_t kExceptionsMax = kPlainCodecBlockSize - kExceptionsAt;
  static constexpr std::uint32_t kException = 7;  // the code of one
  static constexpr std::size_t kSizeMax = 1 + kPlainCodecBlockSize;
};

// If so many elements have gained less than a 32nd, the others are not worth the time.
inline constexpr std::uint64_t kLosslessTriedCount = 16 * kCodecBlock;

}  // namespace headrace::transport
