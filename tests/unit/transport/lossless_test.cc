// Float32 in fewer bytes: the same bits come back, whatever they are.
#include "transport/codec/lossless.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "tests/unit/transport/simd_target_test.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kLosslessCounts[] = {0, 1, 255, 256, 257, 600, 5000, 24576};

class LosslessOn : public SimdTargetTest {
 protected:
  std::mt19937_64 random_{11};
};

std::vector<float> OfBits(const std::vector<std::uint32_t>& bits) {
  std::vector<float> values(bits.size());
  if (!bits.empty()) std::memcpy(values.data(), bits.data(), bits.size() * sizeof(float));
  return values;
}
std::vector<std::uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), bits.size() * sizeof(float));
  return bits;
}

std::vector<float> NormalValues(std::size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Nothing where it was given up.
std::optional<std::vector<std::byte>> Written(const std::vector<float>& values) {
  if (values.empty()) return std::vector<std::byte>();
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  LosslessWriter writer{.out = bytes.data(), .size_max = bytes.size() - 1};
  EncodeLossless(values.data(), values.size(), writer);
  if (!writer.fits) return std::nullopt;
  bytes.resize(writer.size);
  return bytes;
}

std::vector<float> ReadBack(const std::vector<std::byte>& bytes, std::size_t count) {
  LosslessReader reader{.in = bytes};
  std::vector<float> values(count);
  DecodeLossless(reader, count, values.data());
  EXPECT_TRUE(reader.makes_sense);
  EXPECT_TRUE(reader.in.empty());
  return values;
}

TEST_P(LosslessOn, GivesBackTheSameBits) {
  for (const std::size_t count : kLosslessCounts) {
    const std::vector<float> values = NormalValues(count, random_);
    const auto bytes = Written(values);
    // Less than a block has nothing to code.
    ASSERT_EQ(bytes.has_value(), count == 0 || count >= 256) << count;
    if (!bytes) continue;
    EXPECT_EQ(BitsOf(ReadBack(*bytes, count)), BitsOf(values)) << count;
    if (count >= 5000) {
      EXPECT_LT(static_cast<double>(bytes->size()), 0.88 * 4 * static_cast<double>(count));
    }
  }
}

TEST_P(LosslessOn, KeepsEveryBitOfWhatIsRare) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const std::vector<std::uint32_t> rare = {0,
                                           0x80000000U,
                                           1,
                                           0x807FFFFFU,
                                           0x00800000U,
                                           0x7F800000U,
                                           0xFF800000U,
                                           0x7FC00001U,
                                           0xFFBFFFFFU,
                                           0x7F800001U,
                                           std::bit_cast<std::uint32_t>(kMost)};
  for (const std::size_t rare_count : {std::size_t{1}, std::size_t{11}, std::size_t{150}}) {
    std::vector<float> values = NormalValues(3000, random_);
    std::vector<std::uint32_t> bits = BitsOf(values);
    for (std::size_t i = 0; i < rare_count; ++i) {
      bits[300 + random_() % 700] = rare[i % rare.size()];
    }
    const auto bytes = Written(OfBits(bits));
    ASSERT_TRUE(bytes) << rare_count;
    EXPECT_EQ(BitsOf(ReadBack(*bytes, bits.size())), bits) << rare_count;
  }
}

TEST_P(LosslessOn, TakesAByteForABlockOfZerosAndNoneOfMinusZero) {
  std::vector<float> values(256 * 10);
  EXPECT_EQ(Written(values)->size(), 10U);
  values[1000] = -0.0F;
  const auto bytes = Written(values);
  EXPECT_GT(bytes->size(), 10U);
  EXPECT_EQ(BitsOf(ReadBack(*bytes, values.size())), BitsOf(values));
}

TEST_P(LosslessOn, GivesUpWhereNothingIsGained) {
  std::vector<std::uint32_t> bits(24576);
  for (std::uint32_t& each : bits) each = static_cast<std::uint32_t>(random_());
  EXPECT_FALSE(Written(OfBits(bits)));
  // Blocks that do not gain are kept as they are among others that do.
  std::vector<float> values = NormalValues(256 * 40, random_);
  for (std::size_t i = 256; i < 512; ++i) {
    values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random_()));
  }
  const auto bytes = Written(values);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(BitsOf(ReadBack(*bytes, values.size())), BitsOf(values));
}

TEST_P(LosslessOn, WritesTheSameBytesAsEveryOtherTarget) {
  for (const std::size_t count : {256U, 5000U}) {
    std::vector<float> values = NormalValues(count, random_);
    for (std::size_t i = 0; i < count; i += 9) values[i] = 0;
    const auto here = Written(values);
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    EXPECT_EQ(Written(values), here) << count;
    Choose(GetParam());
  }
}

TEST_P(LosslessOn, NoticesWhatIsTooShortOrTooLong) {
  constexpr std::size_t kCount = 1000;
  const auto bytes = Written(NormalValues(kCount, random_));
  ASSERT_TRUE(bytes);
  for (std::size_t size = 0; size < bytes->size(); ++size) {
    const std::vector<std::byte> shorter(bytes->begin(),
                                         bytes->begin() + static_cast<std::ptrdiff_t>(size));
    LosslessReader reader{.in = shorter};
    std::vector<float> values(kCount);
    DecodeLossless(reader, kCount, values.data());
    ASSERT_FALSE(reader.makes_sense) << size;
  }
  std::vector<std::byte> longer = *bytes;
  longer.push_back({});
  LosslessReader reader{.in = longer};
  std::vector<float> values(kCount);
  DecodeLossless(reader, kCount, values.data());
  EXPECT_EQ(reader.in.size(), 1U);
}

TEST_P(LosslessOn, ReadsAnyBytesAtAll) {
  const auto honest = Written(NormalValues(2000, random_));
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<std::byte> bytes = *honest;
    for (int i = 0; i < 3; ++i) bytes[random_() % bytes.size()] = static_cast<std::byte>(random_());
    if (trial % 2 == 0) bytes[0] = static_cast<std::byte>(random_() % 4);
    LosslessReader reader{.in = bytes};
    std::vector<float> values(2000);
    DecodeLossless(reader, values.size(), values.data());
    EXPECT_LE(reader.in.size(), bytes.size());
  }
}

// Where a reader finds them that goes from one to the next.
TEST_P(LosslessOn, FindsBlocksWhereReadingThemInTurnDoes) {
  for (const std::size_t count : {256U, 600U, 5000U}) {
    std::vector<float> values = NormalValues(count, random_);
    std::fill_n(values.begin(), 256 * (count / 512), 0.0F);
    const auto bytes = Written(values);
    ASSERT_TRUE(bytes) << count;
    std::vector<std::uint32_t> begins(LosslessBeginsCount(count));
    ASSERT_TRUE(FindLosslessBlocks(*bytes, count, begins)) << count;
    LosslessReader reader{.in = *bytes};
    for (const std::uint32_t begin : begins) {
      EXPECT_EQ(begin, bytes->size() - reader.in.size());
      DecodeLossless(reader, std::min<std::size_t>(256, values.size()), values.data());
    }
  }
}

TEST_P(LosslessOn, FindsBlocksOnlyWhereTheBytesAreAnEncodingAsAWhole) {
  const auto honest = Written(NormalValues(2000, random_));
  std::size_t found = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<std::byte> bytes = *honest;
    bytes[random_() % bytes.size()] = static_cast<std::byte>(random_());
    if (trial % 4 == 0) bytes[0] = static_cast<std::byte>(random_() % 4);
    if (trial % 4 == 1) bytes[3 + random_() % 96] ^= std::byte{7};
    if (trial % 4 == 2) bytes[2] ^= std::byte{1};
    if (trial % 8 == 3) bytes.resize(random_() % (bytes.size() + 20));
    LosslessReader reader{.in = bytes};
    std::vector<float> values(2000);
    DecodeLossless(reader, values.size(), values.data());
    std::vector<std::uint32_t> begins(LosslessBeginsCount(values.size()));
    const bool finds = FindLosslessBlocks(bytes, values.size(), begins);
    ASSERT_EQ(finds, reader.makes_sense && reader.in.empty()) << trial;
    found += finds ? 1 : 0;
  }
  EXPECT_GT(found, 200U);
  EXPECT_LT(found, 1800U);
}

INSTANTIATE_TEST_SUITE_P(Target, LosslessOn,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), SimdTargetOf);

}  // namespace
}  // namespace headrace::transport
