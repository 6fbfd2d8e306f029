#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/loopback/reference.h"

namespace headrace::transport {
namespace {

// sign | exponent | mantissa, as IEEE 754 lays out its binary formats.
struct Format {
  int mantissa_bits;
  int exponent_bits;

  int Bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int ExponentMax() const { return (1 << exponent_bits) - 1; }  // of infinity and NaN
};

constexpr Format kFloat16Format{.mantissa_bits = 10, .exponent_bits = 5};
constexpr Format kBFloat16Format{.mantissa_bits = 7, .exponent_bits = 8};

double Decode(std::uint16_t bits, Format format) {
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> format.mantissa_bits) & format.ExponentMax();
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  if (exponent == format.ExponentMax()) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) {
    return sign * std::ldexp(mantissa, 1 - format.Bias() - format.mantissa_bits);
  }
  return sign * std::ldexp(mantissa + (1 << format.mantissa_bits),
                           exponent - format.Bias() - format.mantissa_bits);
}

std::uint16_t Encode(double value, Format format) {
  const unsigned infinity = static_cast<unsigned>(format.ExponentMax()) << format.mantissa_bits;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(infinity | 1U << (format.mantissa_bits - 1));
  }
  const unsigned sign = std::signbit(value) ? 0x8000U : 0U;
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  // The distance between neighbours at this magnitude, constant among the subnormals.
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = [0.5, 1) * 2^exponent
  exponent = std::max(exponent - 1, 1 - format.Bias());
  const double steps = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // Neighbours have consecutive codes, across exponents too, so counting steps does the rest.
  const auto code = static_cast<unsigned>(steps) +
                    (static_cast<unsigned>(exponent + format.Bias() - 1) << format.mantissa_bits);
  return static_cast<std::uint16_t>(sign | std::min(code, infinity));
}

}  // namespace

double DecodeFloat16(std::uint16_t bits) { return Decode(bits, kFloat16Format); }
double DecodeBFloat16(std::uint16_t bits) { return Decode(bits, kBFloat16Format); }
std::uint16_t EncodeFloat16(double value) { return Encode(value, kFloat16Format); }
std::uint16_t EncodeBFloat16(double value) { return Encode(value, kBFloat16Format); }

}  // namespace headrace::transport
