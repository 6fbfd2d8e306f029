#include "client/cli/replay/values.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

namespace headrace::replay {
namespace {

template <typename T>
T ElementAt(const std::vector<std::byte>& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof value);
  return value;
}

float FromBFloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Values of normal numbers and 0.
float FromFloat16(std::uint16_t bits) {
  if (bits == 0) return 0;
  const std::uint32_t exponent = (bits >> 10) + 127 - 15;
  return std::bit_cast<float>(exponent << 23 | (bits & 0x3ffU) << 13);
}

float ElementAs(DType dtype, const std::vector<std::byte>& bytes, std::size_t index) {
  switch (dtype) {
    case DType::kFloat64:
      return static_cast<float>(ElementAt<double>(bytes, index));
    case DType::kFloat16:
      return FromFloat16(ElementAt<std::uint16_t>(bytes, index));
    case DType::kBFloat16:
      return FromBFloat16(ElementAt<std::uint16_t>(bytes, index));
    default:
      return ElementAt<float>(bytes, index);
  }
}

// The average as the library computes it, for values of every type and several sizes of a job.
TEST(Values, AreWhatTheirAveragesAreLookedAtFor) {
  constexpr std::size_t kElements = 10'001;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const std::uint32_t ranks : {1U, 2U, 3U, 8U}) {
      const std::optional<Values> values = Values::For(dtype, ranks);
      ASSERT_TRUE(values);
      std::vector<float> sums(kElements, 0);
      std::vector<std::byte> gradient(kElements * SizeOf(dtype));
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        values->Fill(gradient, 5, 9, rank);
        for (std::size_t i = 0; i < kElements; ++i) sums[i] += ElementAs(dtype, gradient, i);
      }
      std::vector<std::byte> averages;
      for (const float sum : sums) {
        const float average = sum / static_cast<float>(ranks);
        const auto append = [&averages](const auto& value) {
          const auto* begin = reinterpret_cast<const std::byte*>(&value);
          averages.insert(averages.end(), begin, begin + sizeof value);
        };
        const auto bits = std::bit_cast<std::uint32_t>(average);
        if (dtype == DType::kFloat64) append(static_cast<double>(average));
        if (dtype == DType::kFloat32) append(average);
        if (dtype == DType::kBFloat16) {
          EXPECT_EQ(bits & 0xffff, 0U) << "the average would be rounded";
          append(static_cast<std::uint16_t>(bits >> 16));
        }
        if (dtype == DType::kFloat16) {
          EXPECT_EQ(bits & 0x1fff, 0U) << "the average would be rounded";
          append(static_cast<std::uint16_t>(
              average == 0 ? 0 : ((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff)));
        }
      }
      EXPECT_EQ(values->FindWrong(averages, 5, 9), std::nullopt) << Name(dtype) << ' ' << ranks;
    }
  }
}

TEST(Values, FindOneWrongElement) {
  const Values values = *Values::For(DType::kFloat32, 1);
  std::vector<std::byte> gradient(100'000 * 4);
  values.Fill(gradient, 0, 1, 0);
  EXPECT_EQ(values.FindWrong(gradient, 0, 1), std::nullopt);
  gradient[4 * 99'998 + 3] ^= std::byte{1};
  EXPECT_EQ(values.FindWrong(gradient, 0, 1), 99'998U);
}

TEST(Values, TellTensorsIterationsAndRanksApart) {
  const Values values = *Values::For(DType::kFloat32, 2);
  std::vector<std::byte> gradient(400);
  values.Fill(gradient, 3, 4, 0);
  EXPECT_TRUE(values.FindWrong(gradient, 3, 4)) << "rank 0's own values are not the average";
  const Values alone = *Values::For(DType::kFloat32, 1);
  EXPECT_FALSE(alone.FindWrong(gradient, 3, 4));
  EXPECT_TRUE(alone.FindWrong(gradient, 4, 4));
  EXPECT_TRUE(alone.FindWrong(gradient, 3, 5));
}

TEST(Values, AreNotLookedAtWhereSumsAreNotExact) {
  EXPECT_TRUE(Values::For(DType::kFloat32, 1000));
  EXPECT_TRUE(Values::For(DType::kBFloat16, 11));
  EXPECT_FALSE(Values::For(DType::kBFloat16, 64));
  EXPECT_FALSE(Values::For(DType::kInt32, 2));
}

}  // namespace
}  // namespace headrace::replay
