// What every encoding is cut into.
#pragma once

#include <cstddef>

namespace headrace::transport {

inline constexpr std::size_t kCodecBlock = 256;  // elements

}  // namespace headrace::transport
