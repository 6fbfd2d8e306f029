#include "transport/nccl/nccl_scalar.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

// A positive number up to 1 in a format of 16 bits, rounded to nearest, ties to even.
std::uint16_t EncodeHalf(double value, int mantissa_bits, int exponent_bias) {
  HR_CHECK(value > 0 && value <= 1, value);
  int exponent = 0;
  std::frexp(value, &exponent);
  const int field = std::max(exponent - 1 + exponent_bias, 1);
  const double scaled = std::ldexp(value, mantissa_bits - (field - exponent_bias));
  // Below the smallest normal number the leading bit is missing, and so is it in the sum.
  const auto mantissa = static_cast<std::uint32_t>(std::nearbyint(scaled));
  return static_cast<std::uint16_t>((static_cast<std::uint32_t>(field - 1) << mantissa_bits) +
                                    mantissa);
}

template <typename Value>
NcclScalar BytesOf(Value value) {
  NcclScalar scalar{};
  std::memcpy(scalar.data(), &value, sizeof value);
  return scalar;
}

}  // namespace

NcclScalar InverseOf(std::uint32_t divisor, DType dtype) {
  HR_CHECK(IsFloating(dtype) && divisor != 0, Name(dtype), divisor);
  const double inverse = 1.0 / divisor;
  if (dtype == DType::kFloat64) return BytesOf(inverse);
  if (dtype == DType::kFloat32) return BytesOf(static_cast<float>(inverse));
  if (dtype == DType::kFloat16) return BytesOf(EncodeHalf(inverse, 10, 15));
  return BytesOf(EncodeHalf(inverse, 7, 127));
}

}  // namespace headrace::transport
