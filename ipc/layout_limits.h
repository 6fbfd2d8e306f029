// Limits of a gradient layout, which client and service check alike.
#pragma once

#include <cstddef>

namespace headrace::ipc {

// Gradients of one layout. Their records must fit the channel together, beside other operations.
inline constexpr std::size_t kLayoutTensorsMax = 768;

}  // namespace headrace::ipc
