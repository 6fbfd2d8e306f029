// The number that inputs are multiplied by where NCCL cannot divide a sum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/base/collective.h"

namespace headrace::transport {

// As many bytes of it as an element has.
using NcclScalar = std::array<std::byte, 8>;

// One over `divisor`, rounded to the nearest of the type; only of types that have fractions.
NcclScalar InverseOf(std::uint32_t divisor, DType dtype);

}  // namespace headrace::transport
