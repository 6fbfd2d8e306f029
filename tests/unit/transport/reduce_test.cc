// ReduceInto against the scalar reference, bit for bit, on every SIMD target of this machine.
#include "transport/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>

#include "tests/contract/members.h"
#include "tests/contract/patterns.h"
#include "tests/support/loopback/reference.h"
#include "tests/unit/transport/simd_target_test.h"

namespace headrace::transport {
namespace {

// Around the sizes of vectors and blocks of all targets.
constexpr std::size_t kCounts[] = {0,  1,  2,  3,  5,   7,   8,   15,  16,  17,  31,
                                   33, 63, 64, 65, 127, 129, 255, 257, 511, 1027};

std::vector<std::byte*> Pointers(std::vector<std::vector<std::byte>>& members) {
  std::vector<std::byte*> pointers;
  for (auto& member : members) pointers.push_back(member.data());
  return pointers;
}

std::string Describe(DType dtype, Reduction reduction, std::size_t members, std::size_t count) {
  return std::string(Name(dtype)) + " " + std::string(Name(reduction)) + " members " +
         std::to_string(members) + " count " + std::to_string(count);
}

class ReduceOn : public SimdTargetTest {
 protected:
  void ExpectSameAsReference(DType dtype, Reduction reduction, std::size_t members_count,
                             std::size_t count, std::size_t first, std::uint32_t divisor = 0) {
    std::vector<std::vector<std::byte>> got;
    for (std::size_t m = 0; m < members_count; ++m) {
      got.push_back(AwkwardElements(dtype, first + count + 3, random_));
    }
    auto expected = got;
    const auto got_pointers = Pointers(got);
    const auto expected_pointers = Pointers(expected);
    const std::size_t offset = first * SizeOf(dtype);
    ReduceInto(dtype, reduction, got_pointers, got_pointers, offset, count, divisor);
    ReferenceReduce(dtype, reduction, expected_pointers, expected_pointers, offset, count, divisor);
    ASSERT_EQ(got, expected) << Describe(dtype, reduction, members_count, count);
  }

  std::mt19937_64 random_{20};
};

TEST_P(ReduceOn, GivesTheReferencesBitsForEveryTypeReductionAndMemberCount) {
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : kReductions) {
      for (std::size_t members = 1; members <= 9; ++members) {
        for (const std::size_t count : kCounts) {
          ASSERT_NO_FATAL_FAILURE(
              ExpectSameAsReference(dtype, reduction, members, count, count % 4));
        }
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSameAsReference(dtype, reduction, kMembersMax, 333, 1));
    }
  }
}

TEST_P(ReduceOn, DividesAveragesAndNothingElseByTheGivenDivisor) {
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : kReductions) {
      for (std::size_t members = 1; members <= 5; ++members) {
        for (const std::uint32_t divisor : {1U, 3U, 1000U}) {
          ASSERT_NO_FATAL_FAILURE(ExpectSameAsReference(dtype, reduction, members, 77, 1, divisor));
        }
      }
    }
  }
}

TEST_P(ReduceOn, GivesTheSameBitsWhereverTheRangeIsCut) {
  constexpr std::size_t kCount = 700;
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : kReductions) {
      std::vector<std::vector<std::byte>> whole;
      for (int m = 0; m < 4; ++m) whole.push_back(AwkwardElements(dtype, kCount, random_));
      auto cut = whole;
      const auto whole_pointers = Pointers(whole);
      const auto cut_pointers = Pointers(cut);
      ReduceInto(dtype, reduction, whole_pointers, whole_pointers, 0, kCount);
      for (std::size_t i = 0; i < kCount;) {
        const std::size_t count = std::min<std::size_t>(1 + random_() % 200, kCount - i);
        ReduceInto(dtype, reduction, cut_pointers, cut_pointers, i * SizeOf(dtype), count);
        i += count;
      }
      ASSERT_EQ(cut, whole) << Describe(dtype, reduction, 4, kCount);
    }
  }
}

TEST_P(ReduceOn, WritesOnlyTheOutputsItIsGiven) {
  for (const DType dtype : kDTypes) {
    constexpr std::size_t kCount = 100;
    const std::size_t size = kCount * SizeOf(dtype);
    std::vector<std::vector<std::byte>> members;
    for (int m = 0; m < 3; ++m) members.push_back(AwkwardElements(dtype, kCount, random_));
    const auto before = members;
    std::vector<std::byte> result(size);
    std::vector<std::byte> expected(size);
    std::byte* const out[] = {result.data()};
    std::byte* const expected_out[] = {expected.data()};
    ReduceInto(dtype, Reduction::kSum, Pointers(members), out, 0, kCount);
    ReferenceReduce(dtype, Reduction::kSum, Pointers(members), expected_out, 0, kCount);
    EXPECT_EQ(members, before) << Name(dtype);
    EXPECT_EQ(result, expected) << Name(dtype);
  }
}

// What the kernels make of one element, which the reference must make of it too.
template <class T>
T ReduceOne(DType dtype, Reduction reduction, const std::vector<T>& values,
            std::uint32_t divisor = 0) {
  std::vector<const std::byte*> inputs;
  for (const T& value : values) inputs.push_back(reinterpret_cast<const std::byte*>(&value));
  T got{};
  T expected{};
  std::byte* const out[] = {reinterpret_cast<std::byte*>(&got)};
  std::byte* const expected_out[] = {reinterpret_cast<std::byte*>(&expected)};
  ReduceInto(dtype, reduction, inputs, out, 0, 1, divisor);
  ReferenceReduce(dtype, reduction, inputs, expected_out, 0, 1, divisor);
  EXPECT_EQ(got, expected) << Describe(dtype, reduction, values.size(), 1) << " / " << divisor;
  return got;
}

template <class T>
void ExpectExtremesWrap(DType dtype) {
  constexpr T kMin = std::numeric_limits<T>::min();
  constexpr T kMax = std::numeric_limits<T>::max();
  constexpr T kMinusOne = static_cast<T>(-1);
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kSum, {kMax, 1}), kMin);
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kSum, {kMin, kMinusOne}), kMax);
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kSum, {kMin, kMin, 1}), T{1});
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kProduct, {kMin, kMinusOne}), kMin);
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kProduct, {kMax, kMax}), T{1});
}

TEST_P(ReduceOn, WrapsSumsAndProductsOfIntegersAtTheirExtremes) {
  ExpectExtremesWrap<std::int32_t>(DType::kInt32);
  ExpectExtremesWrap<std::int64_t>(DType::kInt64);
  ExpectExtremesWrap<std::uint8_t>(DType::kUInt8);
}

INSTANTIATE_TEST_SUITE_P(Target, ReduceOn, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         SimdTargetOf);

// All pairs of codes would take long; all codes against a few partners do not.
constexpr std::uint16_t kPartners[] = {0x0000, 0x0001, 0x3C01, 0x3F81, 0x7BFF, 0x7F7F, 0xB555};

TEST(ReduceHalves, RoundsEveryCodeAsTheReference) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const std::uint16_t partner : kPartners) {
      std::vector<std::uint16_t> all(65536);
      std::iota(all.begin(), all.end(), std::uint16_t{0});
      std::vector<std::uint16_t> partners(all.size(), partner);
      std::vector<std::uint16_t> got(all.size());
      std::vector<std::uint16_t> expected(all.size());
      const std::byte* const inputs[] = {reinterpret_cast<std::byte*>(all.data()),
                                         reinterpret_cast<std::byte*>(partners.data())};
      std::byte* const out[] = {reinterpret_cast<std::byte*>(got.data())};
      std::byte* const expected_out[] = {reinterpret_cast<std::byte*>(expected.data())};
      ReduceInto(dtype, Reduction::kSum, inputs, out, 0, all.size());
      ReferenceReduce(dtype, Reduction::kSum, inputs, expected_out, 0, all.size());
      EXPECT_EQ(got, expected) << Name(dtype) << " + " << partner;
    }
  }
}

TEST(ReduceIntegers, AveragesWithoutWrapping) {
  const std::uint8_t a[] = {200, 255, 0};
  const std::uint8_t b[] = {201, 255, 1};
  std::uint8_t result[3] = {};
  const std::byte* const inputs[] = {reinterpret_cast<const std::byte*>(a),
                                     reinterpret_cast<const std::byte*>(b)};
  std::byte* const out[] = {reinterpret_cast<std::byte*>(result)};
  ReduceInto(DType::kUInt8, Reduction::kAverage, inputs, out, 0, 3);
  EXPECT_EQ(result[0], 200);
  EXPECT_EQ(result[1], 255);
  EXPECT_EQ(result[2], 0);
}

template <class T>
void ExpectExtremesOfAverages(DType dtype) {
  constexpr T kMin = std::numeric_limits<T>::min();
  constexpr T kMax = std::numeric_limits<T>::max();
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kAverage, std::vector<T>(kMembersMax, kMax)), kMax);
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kAverage, std::vector<T>(kMembersMax, kMin)), kMin);
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kAverage, {kMax, kMin, kMax, kMin}),
            std::is_signed_v<T> ? T{0} : static_cast<T>(kMax / 2));
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kAverage, {kMax, kMax}, UINT32_MAX),
            static_cast<T>(sizeof(T) == 8 ? std::uint64_t{1} << 32 : 0));
  // Quotients that do not fit: 3/2 of the most, and the sum itself.
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kAverage, {kMax, kMax, kMax}, 2),
            static_cast<T>(std::uint64_t{kMax / 2} * 3 + 1));
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kAverage, {kMax, 1}, 1), kMin);
  EXPECT_EQ(ReduceOne<T>(dtype, Reduction::kAverage, {kMin, static_cast<T>(-1)}, 1), kMax);
}

TEST(ReduceIntegers, AveragesExtremesAndWrapsOnlyTheQuotient) {
  ExpectExtremesOfAverages<std::int32_t>(DType::kInt32);
  ExpectExtremesOfAverages<std::int64_t>(DType::kInt64);
  ExpectExtremesOfAverages<std::uint8_t>(DType::kUInt8);
}

TEST(ReduceFloats, MakesNaNWhereAnyInputIsNaN) {
  const float quiet = std::numeric_limits<float>::quiet_NaN();
  for (int position = 0; position < 3; ++position) {
    float values[3] = {1.0F, 2.0F, 3.0F};
    values[position] = -quiet;
    const std::byte* const inputs[] = {reinterpret_cast<std::byte*>(&values[0]),
                                       reinterpret_cast<std::byte*>(&values[1]),
                                       reinterpret_cast<std::byte*>(&values[2])};
    for (const Reduction reduction : kReductions) {
      float result = 0;
      std::byte* const out[] = {reinterpret_cast<std::byte*>(&result)};
      ReduceInto(DType::kFloat32, reduction, inputs, out, 0, 1);
      EXPECT_EQ(std::memcmp(&result, &quiet, sizeof(result)), 0) << Name(reduction);
    }
  }
}

}  // namespace
}  // namespace headrace::transport
