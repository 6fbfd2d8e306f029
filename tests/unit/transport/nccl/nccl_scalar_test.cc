// One over a divisor, in every format, against the reference's conversions.
#include "transport/nccl/nccl_scalar.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/loopback/reference.h"

namespace headrace::transport {
namespace {

template <typename Value>
Value As(const NcclScalar& scalar) {
  Value value;
  std::memcpy(&value, scalar.data(), sizeof value);
  return value;
}

TEST(NcclScalar, IsTheNearestNumberOfTheType) {
  for (std::uint32_t divisor = 1; divisor < 200'000; divisor = divisor * 9 / 8 + 1) {
    const double inverse = 1.0 / divisor;
    EXPECT_EQ(As<double>(InverseOf(divisor, DType::kFloat64)), inverse);
    EXPECT_EQ(As<float>(InverseOf(divisor, DType::kFloat32)), static_cast<float>(inverse));
    EXPECT_EQ(As<std::uint16_t>(InverseOf(divisor, DType::kFloat16)), EncodeFloat16(inverse))
        << divisor;
    EXPECT_EQ(As<std::uint16_t>(InverseOf(divisor, DType::kBFloat16)), EncodeBFloat16(inverse))
        << divisor;
  }
}

}  // namespace
}  // namespace headrace::transport
