// What is behind a multicast address of the double, for its kernels.
#pragma once

#include <cstddef>
#include <vector>

#include "transport/memory/cuda_abi.h"

namespace headrace::cuda_double {

// The memory of each GPU of the team that [address, address + size) stands for, in the order in
// which it was bound. Empty where the device may not access it, or something is not bound there.
std::vector<std::byte*> BoundAt(transport::CuDevice device, const std::byte* address,
                                std::size_t size);

}  // namespace headrace::cuda_double
