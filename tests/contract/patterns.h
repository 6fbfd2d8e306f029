// Memory full of the values that arithmetic stumbles over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "ipc/base/collective.h"

namespace headrace::transport {

// `count` elements: mostly ordinary numbers of both signs, among them zeros of both signs,
// infinities, NaNs with payloads, subnormals, and the largest and smallest of the type.
std::vector<std::byte> AwkwardElements(DType dtype, std::size_t count, std::mt19937_64& random);

}  // namespace headrace::transport
