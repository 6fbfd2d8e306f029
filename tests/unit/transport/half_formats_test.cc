#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/loopback/reference.h"

namespace headrace::transport {
namespace {

bool IsNaN16(unsigned code, unsigned infinity) { return (code & 0x7FFFU) > infinity; }

TEST(HalfFormats, DecodesKnownFloat16Codes) {
  EXPECT_EQ(DecodeFloat16(0x3C00), 1.0);
  EXPECT_EQ(DecodeFloat16(0xC000), -2.0);
  EXPECT_EQ(DecodeFloat16(0x7BFF), 65504.0);
  EXPECT_EQ(DecodeFloat16(0x0400), 0x1p-14);
  EXPECT_EQ(DecodeFloat16(0x0001), 0x1p-24);
  EXPECT_EQ(DecodeFloat16(0x3555), 0.333251953125);
  EXPECT_EQ(DecodeFloat16(0xFC00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(DecodeFloat16(0x7C01)));
  EXPECT_TRUE(std::signbit(DecodeFloat16(0x8000)));
}

TEST(HalfFormats, DecodesBFloat16AsTheUpperHalfOfFloat32) {
  for (unsigned code = 0; code <= 0xFFFF; ++code) {
    const float expected = std::bit_cast<float>(code << 16);
    const double got = DecodeBFloat16(static_cast<std::uint16_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << code;
    } else {
      EXPECT_EQ(got, static_cast<double>(expected)) << code;
    }
  }
}

TEST(HalfFormats, EncodesEveryDecodedCodeBack) {
  for (unsigned code = 0; code <= 0xFFFF; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    EXPECT_EQ(EncodeFloat16(DecodeFloat16(bits)), IsNaN16(code, 0x7C00) ? 0x7E00 : bits);
    EXPECT_EQ(EncodeBFloat16(DecodeBFloat16(bits)), IsNaN16(code, 0x7F80) ? 0x7FC0 : bits);
  }
}

TEST(HalfFormats, RoundsHalfwayToEven) {
  EXPECT_EQ(EncodeFloat16(1.0 + 0x1p-11), 0x3C00);            // between 1 and the next: even is 1
  EXPECT_EQ(EncodeFloat16(1.0 + 3 * 0x1p-11), 0x3C02);        // between odd and even
  EXPECT_EQ(EncodeFloat16(1.0 + 0x1p-11 + 0x1p-40), 0x3C01);  // just above the middle
  EXPECT_EQ(EncodeFloat16(0x1p-25), 0x0000);
  EXPECT_EQ(EncodeFloat16(0x1p-25 + 0x1p-50), 0x0001);
  EXPECT_EQ(EncodeFloat16(3 * 0x1p-25), 0x0002);
  EXPECT_EQ(EncodeBFloat16(1.0 + 0x1p-8), 0x3F80);
  EXPECT_EQ(EncodeBFloat16(1.0 + 3 * 0x1p-8), 0x3F82);
}

TEST(HalfFormats, OverflowsToInfinityFromTheMiddleOn) {
  EXPECT_EQ(EncodeFloat16(65519.99), 0x7BFF);
  EXPECT_EQ(EncodeFloat16(65520.0), 0x7C00);
  EXPECT_EQ(EncodeFloat16(-1e300), 0xFC00);
  EXPECT_EQ(EncodeBFloat16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(EncodeBFloat16(-std::numeric_limits<double>::infinity()), 0xFF80);
}

}  // namespace
}  // namespace headrace::transport
