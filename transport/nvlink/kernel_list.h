// All kernels that reduce, by name: X(reduction, dtype, element, operation, gradients). Averages of
// floating point are sums that are divided, by the same kernel; those of integers are summed in a
// type that kMembersMax inputs cannot overflow and that holds every divisor, as on the host.
#pragma once

#include "transport/nvlink/kernel_bodies.h"

namespace headrace::transport::kernels {

__extension__ using Int128 = __int128;

}  // namespace headrace::transport::kernels

#define HR_REDUCE_KERNELS_OF_FLOATS(X, dtype, Element, gradients) \
  X(sum, dtype, Element, Sum, gradients)                          \
  X(min, dtype, Element, Min, false)                              \
  X(max, dtype, Element, Max, false)                              \
  X(product, dtype, Element, Product, false)

#define HR_COMMA ,
#define HR_REDUCE_KERNELS_OF_INTEGERS(X, dtype, Signed, Unsigned, Wide) \
  X(sum, dtype, Plain<Unsigned>, Sum, false)                            \
  X(min, dtype, Plain<Signed>, Min, false)                              \
  X(max, dtype, Plain<Signed>, Max, false)                              \
  X(product, dtype, Plain<Unsigned>, Product, false)                    \
  X(average, dtype, Widened<Signed HR_COMMA Wide>, Sum, false)

#define HR_REDUCE_KERNELS(X)                                                         \
  HR_REDUCE_KERNELS_OF_FLOATS(X, float32, Plain<float>, true)                        \
  HR_REDUCE_KERNELS_OF_FLOATS(X, float64, Plain<double>, true)                       \
  HR_REDUCE_KERNELS_OF_FLOATS(X, float16, Float16, true)                             \
  HR_REDUCE_KERNELS_OF_FLOATS(X, bfloat16, BFloat16, true)                           \
  HR_REDUCE_KERNELS_OF_INTEGERS(X, int32, std::int32_t, std::uint32_t, std::int64_t) \
  HR_REDUCE_KERNELS_OF_INTEGERS(X, int64, std::int64_t, std::uint64_t, Int128)       \
  HR_REDUCE_KERNELS_OF_INTEGERS(X, uint8, std::uint8_t, std::uint8_t, std::int64_t)
