#include "transport/ucx/address.h"

#include <gtest/gtest.h>

namespace headrace::transport {
namespace {

TEST(WireAddress, ComesBackAsItWasWritten) {
  const WireAddress address{0x1122334455667788U, 0x99U, std::string("\0\1binary\xff", 9)};
  const Result<WireAddress> decoded = DecodeAddress(EncodeAddress(address));
  ASSERT_TRUE(decoded) << decoded.error().text();
  EXPECT_EQ(decoded->wire_id, address.wire_id);
  EXPECT_EQ(decoded->settings_sum, address.settings_sum);
  EXPECT_EQ(decoded->ucx_address, address.ucx_address);
}

TEST(WireAddress, KeepsItsBytes) {
  const std::string bytes = EncodeAddress({1, 3, "ab"});
  const std::string head("HRUCX\1\0\0\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\2\0\0\0ab", 30);
  EXPECT_EQ(bytes.substr(0, 30), head);
  EXPECT_EQ(bytes.size(), 38U);
}

TEST(WireAddress, RefusesEveryCutAndEveryFlippedBit) {
  const std::string bytes = EncodeAddress({77, 5, std::string(50, 'u')});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Result<WireAddress> cut = DecodeAddress(bytes.substr(0, size));
    ASSERT_FALSE(cut) << size;
    EXPECT_EQ(cut.error().code(), Code::kUnavailable);
  }
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeAddress(flipped)) << bit;
  }
}

TEST(WireAddress, RefusesAnAddressOfNoBytesAndOneThatIsTooLong) {
  EXPECT_FALSE(DecodeAddress(EncodeAddress({1, 3, ""})));
  EXPECT_TRUE(DecodeAddress(EncodeAddress({1, 3, std::string(kUcxAddressSizeMax, 'x')})));
  EXPECT_FALSE(DecodeAddress(EncodeAddress({1, 3, std::string(kUcxAddressSizeMax + 1, 'x')})));
}

}  // namespace
}  // namespace headrace::transport
