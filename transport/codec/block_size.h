// The size of the blocks of every encoding.
#pragma once

#include <cstddef>

namespace headrace::transport {

inline constexpr std::size_t kCodecBlock = 256;  // elements
// Its elements as they are, in bytes.
inline constexpr std::size_t kPlainCodecBlockSize = kCodecBlock * sizeof(float);

}  // namespace headrace::transport
