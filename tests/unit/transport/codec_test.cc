// Encodings of gradients: errors, feedback, and the same bytes on every SIMD target.
#include "transport/codec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/transport/simd_target_test.h"

namespace headrace::transport {
namespace {

constexpr Codec kRoundingCodecs[] = {
    Codec::kBFloat16,   Codec::kFloat16,    Codec::kInt8,           Codec::kInt4,
    Codec::kFloat8E4M3, Codec::kFloat8E5M2, Codec::kInt8Stochastic, Codec::kInt4Stochastic};
constexpr Codec kCodecs[] = {Codec::kBFloat16,       Codec::kFloat16,        Codec::kInt8,
                             Codec::kInt4,           Codec::kFloat8E4M3,     Codec::kFloat8E5M2,
                             Codec::kInt8Stochastic, Codec::kInt4Stochastic, Codec::kSign,
                             Codec::kTopK,           {Codec::kTopK, 1},      {Codec::kTopK, 64},
                             Codec::kRandomK,        {Codec::kRandomK, 7}};
constexpr std::size_t kEncodedCounts[] = {1, 2, 127, 128, 129, 255, 256, 257, 600, 1024, 5000};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using EncodedBytes = std::vector<std::byte>;
using Floats = std::vector<float>;

// Like gradients: most are small, some blocks much larger than others, some zeros.
Floats Gradients(std::size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Floats values(count);
  float size = 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kCodecBlock == 0) size = std::exp2(static_cast<float>(random() % 24) - 20.0F);
    values[i] = random() % 16 == 0 ? 0.0F : normal(random) * size;
  }
  return values;
}

EncodedBytes Encoded(Codec codec, const Floats& values, Floats* residual = nullptr,
                     const CodecSeed& seed = {}) {
  EncodedBytes bytes(EncodedSize(codec, values.size()));
  Encode(codec, values.data(), residual == nullptr ? nullptr : residual->data(), values.size(),
         bytes.data(), seed);
  return bytes;
}

Floats Decoded(Codec codec, const EncodedBytes& bytes, std::size_t count, std::uint32_t divisor = 1,
               const CodecSeed& seed = {}) {
  Floats values(count);
  const std::byte* const input = bytes.data();
  DecodeSum(codec, {&input, 1}, count, false, divisor, values.data(), seed);
  return values;
}

float LargestOfBlock(const Floats& values, std::size_t element) {
  const std::size_t begin = element / kCodecBlock * kCodecBlock;
  const std::size_t end = std::min(begin + kCodecBlock, values.size());
  float largest = 0;
  for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

class CodecOn : public SimdTargetTest {
 protected:
  std::mt19937_64 random_{21};
};

TEST(Codec, TakesTheBytesThatItsNameSays) {
  EXPECT_EQ(EncodedSize(Codec::kBFloat16, 1024), 2048U);
  EXPECT_EQ(EncodedSize(Codec::kFloat16, 1024), 2048U);
  EXPECT_EQ(EncodedSize(Codec::kInt8, 1024), 1024U + 16);
  EXPECT_EQ(EncodedSize(Codec::kInt4, 1024), 512U + 16);
  EXPECT_EQ(EncodedSize(Codec::kInt8, 0), 0U);
  EXPECT_EQ(EncodedSize(Codec::kInt8, 1), 260U);
  EXPECT_EQ(EncodedSize(Codec::kInt8, 257), 520U);
  EXPECT_EQ(EncodedSize(Codec::kFloat8E4M3, 257), 520U);
  EXPECT_EQ(EncodedSize(Codec::kSign, 1024), 128U + 16);
  EXPECT_EQ(EncodedSize({Codec::kTopK, 3}, 1024), 4U * 3 * 3);
  EXPECT_EQ(EncodedSize({Codec::kRandomK, 3}, 1024), 4U * 3 * 4);
  EXPECT_EQ(EncodedSize(Codec::kLossless, 1000), 4000U);
}

TEST_P(CodecOn, ErrsByNoMoreThanItsBound) {
  for (const Codec codec : kCodecs) {
    for (const std::size_t count : kEncodedCounts) {
      const Floats values = Gradients(count, random_);
      const Floats decoded = Decoded(codec, Encoded(codec, values), count);
      double largest_error = 0;
      for (std::size_t i = 0; i < count; ++i) {
        // Float16 has no more than 2^-24 for what is below its normal numbers.
        const double floor = codec == Codec::kFloat16 ? 0x1p-25 : 0;
        const double bound = ErrorBound(codec) * LargestOfBlock(values, i) + floor;
        const double error = std::abs(double{decoded[i]} - values[i]);
        ASSERT_LE(error, bound) << Name(codec) << " element " << i << " of " << count;
        largest_error = std::max(largest_error, error);
      }
      if (count >= kCodecBlock) {
        EXPECT_GT(largest_error, 0) << Name(codec);
      }
    }
  }
}

TEST_P(CodecOn, CountsBlocksWithAValueThatIsNotFinite) {
  constexpr std::size_t kCount = 4 * kCodecBlock + 10;
  for (const Codec codec : kCodecs) {
    Floats values = Gradients(kCount, random_);
    EXPECT_EQ(NotFiniteBlocks(codec, Encoded(codec, values).data(), 5), 0U) << Name(codec);
    // randomk sends one element of each share, so two whole blocks of them are surely seen.
    std::fill_n(values.begin() + kCodecBlock, kCodecBlock, std::numeric_limits<float>::infinity());
    std::fill_n(values.begin() + 4 * kCodecBlock, 10, std::numeric_limits<float>::quiet_NaN());
    const std::uint64_t found = NotFiniteBlocks(codec, Encoded(codec, values).data(), 5);
    EXPECT_GE(found, codec.kind == Codec::kRandomK ? 1U : 2U) << Name(codec);
    EXPECT_LE(found, 2U) << Name(codec);
  }
}

TEST_P(CodecOn, WritesTheSameBytesAsEveryOtherTarget) {
  for (const Codec codec : kCodecs) {
    for (const std::size_t count : kEncodedCounts) {
      const Floats values = Gradients(count, random_);
      Floats residual = Gradients(count, random_);
      Floats residual_there = residual;
      const EncodedBytes here = Encoded(codec, values, &residual);
      const Floats decoded = Decoded(codec, here, count, 3);
      hwy::SetSupportedTargetsForTest(0);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      EXPECT_EQ(Encoded(codec, values, &residual_there), here) << Name(codec) << " " << count;
      EXPECT_EQ(residual_there, residual) << Name(codec) << " " << count;
      EXPECT_EQ(Decoded(codec, here, count, 3), decoded) << Name(codec) << " " << count;
      Choose(GetParam());
    }
  }
}

TEST_P(CodecOn, LosesNothingOverManyIterations) {
  constexpr std::size_t kCount = 1000;
  constexpr int kIterations = 50;
  for (const Codec codec : kCodecs) {
    Floats residual(kCount);
    std::vector<double> given(kCount);
    std::vector<double> applied(kCount);
    Floats largest(kCount);
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      const Floats values = Gradients(kCount, random_);
      const Floats decoded = Decoded(codec, Encoded(codec, values, &residual), kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        given[i] += values[i];
        applied[i] += decoded[i];
        largest[i] = std::max(largest[i], LargestOfBlock(values, i));
      }
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      // What is left is all that differs, but for float32's own rounding.
      // Residuals of elements that wait are as large as what was given.
      const bool waits = ErrorBound(codec) == 1;
      const double rounding = kIterations * (waits ? kIterations * 0x1p-24 : 0x1p-22);
      ASSERT_NEAR(applied[i] + residual[i], given[i], rounding * largest[i])
          << Name(codec) << " element " << i;
      if (waits) continue;
      ASSERT_LE(std::abs(residual[i]), 2 * ErrorBound(codec) * largest[i] + 0x1p-24)
          << Name(codec) << " element " << i;
    }
  }
}

TEST_P(CodecOn, AddsInOrderAndDividesLast) {
  constexpr std::size_t kCount = 700;
  for (const Codec codec : kCodecs) {
    std::vector<EncodedBytes> encoded;
    std::vector<Floats> decoded;
    std::vector<const std::byte*> inputs;
    for (int input = 0; input < 3; ++input) {
      encoded.push_back(Encoded(codec, Gradients(kCount, random_)));
      decoded.push_back(Decoded(codec, encoded.back(), kCount));
    }
    for (const EncodedBytes& bytes : encoded) inputs.push_back(bytes.data());
    const Floats own = Gradients(kCount, random_);
    Floats out = own;
    DecodeSum(codec, inputs, kCount, true, 7, out.data());
    Floats alone(kCount);
    DecodeSum(codec, inputs, kCount, false, 1, alone.data());
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(out[i], (own[i] + decoded[0][i] + decoded[1][i] + decoded[2][i]) / 7) << i;
      ASSERT_EQ(alone[i], decoded[0][i] + decoded[1][i] + decoded[2][i]) << i;
    }
  }
}

TEST_P(CodecOn, TouchesNothingBehindTheLastElement) {
  for (const Codec codec : kCodecs) {
    for (const std::size_t count : kEncodedCounts) {
      const Floats values = Gradients(count, random_);
      Floats residual(count + 1, 0.0F);
      residual.back() = 42;
      EncodedBytes bytes(EncodedSize(codec, count) + 1, std::byte{0x5A});
      Encode(codec, values.data(), residual.data(), count, bytes.data());
      EXPECT_EQ(residual.back(), 42.0F);
      EXPECT_EQ(bytes.back(), std::byte{0x5A});
      Floats out(count + 1, 42.0F);
      const std::byte* const input = bytes.data();
      DecodeSum(codec, {&input, 1}, count, true, 1, out.data());
      EXPECT_EQ(out.back(), 42.0F);
    }
  }
}

TEST_P(CodecOn, GivesTheSameBytesWhereverARangeIsCutBetweenBlocks) {
  constexpr std::size_t kCount = 5 * kCodecBlock + 77;
  for (const Codec codec : kCodecs) {
    const Floats values = Gradients(kCount, random_);
    const EncodedBytes whole = Encoded(codec, values);
    EncodedBytes parts;
    for (std::size_t begin = 0; begin < kCount; begin += 2 * kCodecBlock) {
      const std::size_t end = std::min(begin + 2 * kCodecBlock, kCount);
      const EncodedBytes part = Encoded(codec,
                                        Floats(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                               values.begin() + static_cast<std::ptrdiff_t>(end)),
                                        nullptr, {.first_block = begin / kCodecBlock});
      parts.insert(parts.end(), part.begin(), part.end());
    }
    EXPECT_EQ(parts, whole) << Name(codec);
  }
}

TEST_P(CodecOn, ShowsWhatIsNotFiniteAndForgetsItsResidual) {
  std::vector<Codec> codecs(std::begin(kRoundingCodecs), std::end(kRoundingCodecs));
  codecs.push_back(Codec::kSign);
  for (const Codec codec : codecs) {
    const bool scaled = codec != Codec::kBFloat16 && codec != Codec::kFloat16;
    for (const float special : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      Floats values(3 * kCodecBlock, 1.25F);
      values[kCodecBlock + 5] = special;
      Floats residual(values.size(), 0.01F);
      const Floats decoded = Decoded(codec, Encoded(codec, values, &residual), values.size());
      EXPECT_EQ(residual[kCodecBlock + 5], 0.0F);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_TRUE(std::isfinite(residual[i])) << Name(codec) << " " << i;
        const bool beside = scaled && i / kCodecBlock == 1;
        if (i == kCodecBlock + 5 && !scaled) {
          ASSERT_TRUE(std::isnan(special) ? std::isnan(decoded[i]) : decoded[i] == special)
              << Name(codec) << " " << decoded[i];
        } else if (beside) {
          ASSERT_TRUE(std::isnan(decoded[i])) << Name(codec) << " " << i;
          ASSERT_EQ(residual[i], 0.0F) << Name(codec) << " " << i;
        } else {
          ASSERT_NEAR(decoded[i], 1.26F, 0.2F) << Name(codec) << " " << i;
        }
      }
    }
  }
}

TEST_P(CodecOn, ShowsWhatIsNotFiniteAmongWhatItKeeps) {
  for (const float special : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    Floats values(2 * kCodecBlock, 1.25F);
    values[kCodecBlock + 5] = special;
    Floats residual(values.size(), 0.5F);
    const Floats largest =
        Decoded(Codec::kTopK, Encoded(Codec::kTopK, values, &residual), values.size());
    const float shown = largest[kCodecBlock + 5];
    EXPECT_TRUE(std::isnan(special) ? std::isnan(shown) : shown == special) << shown;
    EXPECT_EQ(residual[kCodecBlock + 5], 0.0F);
    EXPECT_EQ(residual[kCodecBlock + 200], 1.75F);

    residual.assign(values.size(), 0.5F);
    const Floats random =
        Decoded(Codec::kRandomK, Encoded(Codec::kRandomK, values, &residual), values.size());
    const auto second = random.begin() + kCodecBlock;
    EXPECT_EQ(std::count_if(random.begin(), second, [](float v) { return v == 1.75F; }), 8);
    EXPECT_EQ(std::count_if(second, random.end(), [](float v) { return std::isnan(v); }), 8);
    EXPECT_EQ(residual[kCodecBlock + 9], 0.0F);
  }
  // More than are kept: those that are not shown are not kept either.
  Floats residual(kCodecBlock);
  const Floats all(kCodecBlock, kNaN);
  const Floats decoded = Decoded(Codec::kTopK, Encoded(Codec::kTopK, all, &residual), kCodecBlock);
  EXPECT_EQ(std::count_if(decoded.begin(), decoded.end(), [](float v) { return std::isnan(v); }),
            kKeptDefault);
  EXPECT_EQ(residual, Floats(kCodecBlock));
}

TEST_P(CodecOn, KeepsTheLargestAndOfEqualOnesTheFirst) {
  for (const std::uint8_t kept : {std::uint8_t{1}, std::uint8_t{8}, std::uint8_t{64}}) {
    const Codec codec(Codec::kTopK, kept);
    for (int trial = 0; trial < 50; ++trial) {
      Floats values = Gradients(kCodecBlock, random_);
      // Many that are equal, of both signs.
      for (float& value : values) value = std::round(value * 4 / LargestOfBlock(values, 0)) / 4;
      std::vector<std::size_t> places(kCodecBlock);
      for (std::size_t i = 0; i < kCodecBlock; ++i) places[i] = i;
      std::ranges::stable_sort(places, std::greater<>(),
                               [&](std::size_t i) { return std::abs(values[i]); });
      Floats expected(kCodecBlock);
      for (std::size_t i = 0; i < kept; ++i) expected[places[i]] = values[places[i]];
      ASSERT_EQ(Decoded(codec, Encoded(codec, values), kCodecBlock), expected) << int{kept};
    }
  }
}

TEST_P(CodecOn, KeepsTheSamePlacesOnAllNodesAndOthersTheNextTime) {
  const Codec codec(Codec::kRandomK, 16);
  const Floats ones(4 * kCodecBlock, 1.0F);
  std::vector<int> times(ones.size());
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const CodecSeed chance{.seed = seed};
    const EncodedBytes bytes = Encoded(codec, ones, nullptr, chance);
    const EncodedBytes other = Encoded(codec, Gradients(ones.size(), random_), nullptr, chance);
    EXPECT_EQ(other.size(), bytes.size());
    const Floats here = Decoded(codec, bytes, ones.size(), 1, chance);
    for (std::size_t i = 0; i < ones.size(); ++i) times[i] += here[i] == 1 ? 1 : 0;
  }
  // 400 times a sixteenth, by chance.
  EXPECT_GT(*std::ranges::min_element(times), 5);
  EXPECT_LT(*std::ranges::max_element(times), 55);

  // The sum of encodings is the encoding of the sum.
  const Floats one = Gradients(1000, random_);
  const Floats two = Gradients(1000, random_);
  Floats both(1000);
  for (std::size_t i = 0; i < both.size(); ++i) both[i] = one[i] + two[i];
  const EncodedBytes first = Encoded(codec, one);
  const EncodedBytes second = Encoded(codec, two);
  const std::vector<const std::byte*> inputs = {first.data(), second.data()};
  Floats sum(1000);
  DecodeSum(codec, inputs, sum.size(), false, 1, sum.data());
  EXPECT_EQ(sum, Decoded(codec, Encoded(codec, both), both.size()));
}

TEST_P(CodecOn, IsRightOnAverageWhereItRoundsByChance) {
  constexpr int kTimes = 2000;
  for (const Codec codec : {Codec::kInt8Stochastic, Codec::kInt4Stochastic}) {
    const Floats values = Gradients(kCodecBlock, random_);
    std::vector<double> sum(values.size());
    EncodedBytes last;
    for (std::uint64_t seed = 0; seed < kTimes; ++seed) {
      const EncodedBytes bytes = Encoded(codec, values, nullptr, {.seed = seed});
      EXPECT_EQ(Encoded(codec, values, nullptr, {.seed = seed}), bytes);
      EXPECT_NE(bytes, last);
      last = bytes;
      const Floats decoded = Decoded(codec, bytes, values.size());
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += double{decoded[i]};
    }
    const double step = ErrorBound(codec) * LargestOfBlock(values, 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      // Half a step at most is the deviation of one; five of the mean's are not exceeded.
      ASSERT_NEAR(sum[i] / kTimes, values[i], 5 * 0.5 * step / std::sqrt(kTimes))
          << Name(codec) << " element " << i;
    }
  }
}

TEST_P(CodecOn, RoundsTheLargestByChanceToTheLargestCode) {
  for (const auto& [codec, steps] :
       {std::pair{Codec::kInt8Stochastic, 127.0F}, std::pair{Codec::kInt4Stochastic, 7.0F}}) {
    // One whose product with its rounded inverse is more than the largest code.
    float largest = 6.4F;
    while (largest * (steps / largest) <= steps) largest = std::nextafter(largest, 7.0F);
    Floats values(kCodecBlock, largest);
    for (std::size_t i = 0; i < values.size(); i += 2) values[i] = -largest;
    // Chance moves each element by the most that it can in one of 65536 seeds.
    for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
      const Floats decoded = Decoded(codec, Encoded(codec, values, nullptr, {.seed = seed}),
                                     values.size(), 1, {.seed = seed});
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(decoded[i], values[i], 1.001F * largest / steps) << Name(codec) << " " << seed;
      }
    }
  }
}

TEST_P(CodecOn, HasTheMeanMagnitudeAndTheSigns) {
  const Floats values = {1.0F, -2.0F, 3.0F, -6.0F, 0.0F, 0.0F};
  Floats residual(values.size());
  const Floats decoded =
      Decoded(Codec::kSign, Encoded(Codec::kSign, values, &residual), values.size());
  EXPECT_EQ(decoded, (Floats{2, -2, 2, -2, 2, 2}));
  EXPECT_EQ(residual, (Floats{-1, 0, 1, -4, -2, -2}));
}

// Against the table of the format's numbers.
TEST_P(CodecOn, RoundsToTheNearestFloatOfEightBits) {
  struct Eight {
    Codec codec;
    int digits;
    int bias;
    float largest;
  };
  for (const Eight& format :
       {Eight{Codec::kFloat8E4M3, 3, 7, 448}, Eight{Codec::kFloat8E5M2, 2, 15, 57344}}) {
    std::vector<float> numbers;
    for (int code = 0; code < 128; ++code) {
      const int exponent = code >> format.digits;
      const int fraction = code & ((1 << format.digits) - 1);
      const int whole = exponent == 0 ? fraction : fraction + (1 << format.digits);
      const float number = std::ldexp(static_cast<float>(whole),
                                      std::max(exponent, 1) - format.bias - format.digits);
      if (number <= format.largest) numbers.push_back(number);
    }
    // The block's largest makes the scale 1.
    Floats values(kCodecBlock);
    for (int trial = 0; trial < 200; ++trial) {
      values[0] = format.largest;
      for (std::size_t i = 1; i < values.size(); ++i) {
        const float number = numbers[random_() % numbers.size()];
        const float above = numbers[std::min<std::size_t>(random_() % numbers.size(), 5)];
        values[i] = trial == 0 ? numbers[i % numbers.size()]
                               : std::min(number + above / 2 + number / 97, format.largest);
        if (i % 2 == 0) values[i] = -values[i];
      }
      const Floats decoded = Decoded(format.codec, Encoded(format.codec, values), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        float nearest = 0;
        for (const float number : numbers) {
          if (std::abs(number - std::abs(values[i])) < std::abs(nearest - std::abs(values[i]))) {
            nearest = number;
          }
        }
        ASSERT_EQ(std::abs(std::abs(decoded[i]) - std::abs(values[i])),
                  std::abs(nearest - std::abs(values[i])))
            << Name(format.codec) << " " << values[i] << " " << decoded[i];
        ASSERT_GE(decoded[i] * values[i], 0.0F);
      }
    }
  }
}

TEST_P(CodecOn, KeepsFiniteWhatIsFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const Codec codec : kCodecs) {
    Floats residual(kCodecBlock);
    const Floats values = {kMost, -kMost, 70000.0F, -70000.0F, 1.0F};
    const Floats decoded = Decoded(codec, Encoded(codec, values, &residual), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(std::isfinite(decoded[i])) << Name(codec) << " " << values[i];
    }
    if (codec == Codec::kFloat16) {
      EXPECT_EQ(decoded[2], 65504.0F);
      EXPECT_EQ(residual[2], 70000.0F - 65504.0F);
    }
  }
}

TEST_P(CodecOn, LetsWhatIsTooSmallWaitInTheResidual) {
  for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
    const Floats values(300, 1e-39F);
    Floats residual(values.size());
    const Floats first = Decoded(codec, Encoded(codec, values, &residual), values.size());
    EXPECT_EQ(first, Floats(values.size()));
    EXPECT_EQ(residual, values);
    double applied = 0;
    for (int iteration = 1; iteration < 5000; ++iteration) {
      applied += Decoded(codec, Encoded(codec, values, &residual), values.size())[7];
    }
    EXPECT_NEAR(applied + residual[7], 5000 * 1e-39, 1e-38) << Name(codec);
    EXPECT_GT(applied, 0) << Name(codec);
  }
}

TEST_P(CodecOn, ReadsAnyBytesAtAll) {
  for (const Codec codec : kCodecs) {
    for (int trial = 0; trial < 200; ++trial) {
      const std::size_t count = 1 + random_() % 700;
      EncodedBytes bytes(EncodedSize(codec, count));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
      const Floats decoded = Decoded(codec, bytes, count);
      EXPECT_EQ(decoded.size(), count);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Target, CodecOn, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         SimdTargetOf);

}  // namespace
}  // namespace headrace::transport
