// The kernels of codecs, on a double of CUDA's driver: the bits of the host's codecs, wherever
// memory lies and whatever it holds.
#include "transport/nvlink/gpu_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "tests/unit/transport/nvlink/codecs_of_gpus.h"
#include "transport/codec/codec.h"
#include "transport/codec/lossless.h"
#include "transport/memory/pinned_memory.h"

namespace headrace::transport {
namespace {

constexpr Codec kCodecs[] = {
    Codec::kBFloat16,   Codec::kFloat16,    Codec::kInt8,           Codec::kInt4,
    Codec::kFloat8E4M3, Codec::kFloat8E5M2, Codec::kInt8Stochastic, Codec::kInt4Stochastic,
    Codec::kSign,       Codec::kTopK,       {Codec::kTopK, 1},      {Codec::kTopK, 33},
    {Codec::kTopK, 64}, Codec::kRandomK,    {Codec::kRandomK, 7},   {Codec::kRandomK, 64}};
constexpr std::size_t kCounts[] = {1, 2, 127, 128, 129, 255, 256, 257, 600, 1024, 5000, 40000};
using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

enum class Content : std::uint8_t { kGradients, kAnyBits, kTies, kTiny, kHuge };
constexpr Content kContents[] = {Content::kGradients, Content::kAnyBits, Content::kTies,
                                 Content::kTiny, Content::kHuge};

float AnyFloat(Content content, std::mt19937_64& random, float size) {
  std::normal_distribution<float> normal;
  switch (content) {
    case Content::kGradients:
      return random() % 16 == 0 ? 0.0F : normal(random) * size;
    case Content::kAnyBits:  // NaN of any payload, infinities, denormals
      return std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    case Content::kTies:
      return static_cast<float>(static_cast<int>(random() % 5) - 2) * 0.5F;
    case Content::kTiny:
      return std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x80FFFFFFU);
    case Content::kHuge:
      return std::copysign(std::numeric_limits<float>::max() / 3, normal(random)) *
             (random() % 2 == 0 ? 1.0F : 0.9F);
  }
  return 0;
}

// Blocks of several sizes; of any bits, some blocks all finite.
Floats Filled(Content content, std::size_t count, std::mt19937_64& random) {
  Floats values(count);
  float size = 1;
  bool is_calm = false;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kCodecBlock == 0) {
      size = std::exp2(static_cast<float>(random() % 24) - 20.0F);
      is_calm = random() % 2 == 0;
    }
    values[i] = AnyFloat(content, random, size);
    if (content == Content::kAnyBits && is_calm && !std::isfinite(values[i])) values[i] = size;
  }
  return values;
}

std::vector<std::uint32_t> BitsOf(const float* values, std::size_t count) {
  std::vector<std::uint32_t> bits(count);
  std::memcpy(bits.data(), values, count * sizeof(float));
  return bits;
}
std::vector<std::uint32_t> BitsOf(const Floats& values) {
  return BitsOf(values.data(), values.size());
}

// Around the size after which too little gain ends the coding.
constexpr std::size_t kLosslessCounts[] = {1,    255,  256,  257,  600,   3840,
                                           4095, 4096, 4097, 8192, 24576, 40001};

// Some blocks are zeros, or code badly; or all gain less than is worth the time.
Floats FilledForLossless(Content content, std::size_t count, std::mt19937_64& random) {
  Floats values = Filled(content, count, random);
  const std::uint64_t zeros = random() % 3;
  const std::uint64_t scattered = random() % 4;
  const bool gains_little = content == Content::kGradients && count % 2 == 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t block = i / kCodecBlock;
    if (gains_little) {
      if (i % kCodecBlock < 135) values[i] *= 0x1p-60F;
      continue;
    }
    if (zeros > 0 && block % (1 + zeros) == 1) values[i] = 0;
    if (scattered == 1 && block % 7 == 3) {
      values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    }
  }
  return values;
}

RunWalk WholeWalk(std::size_t count) { return {DType::kFloat32, count, std::span<const Run>(), 0}; }

class GpuCodecTest : public CodecOfGpus {
 protected:
  // The sum lies on GPU 1, the residual on the host, and what it has is written back.
  Bytes EncodedOnGpu(Codec codec, const Floats& values, Floats* residual, const CodecSeed& seed,
                     std::size_t shift = 0) {
    const std::size_t count = values.size();
    std::byte* const out = OnHost(EncodedSize(codec, count));
    std::byte* kept = nullptr;
    if (residual != nullptr) {
      kept = OnHost(count * sizeof(float), 4 * shift);
      std::memcpy(kept, residual->data(), count * sizeof(float));
    }
    const EncodedRange range{.codec = codec,
                             .walk = WholeWalk(count + seed.first_block * kCodecBlock),
                             .residual_walk = WholeWalk(count + seed.first_block * kCodecBlock),
                             .range = {seed.first_block * kCodecBlock, count},
                             .memory = OnGpu(1, values, 4 * shift) - AheadOf(seed),
                             .residual = kept == nullptr ? nullptr : kept - AheadOf(seed),
                             .seed = seed.seed};
    EXPECT_TRUE(codec_->Encode(1, range, out).ok());
    EXPECT_TRUE(Wait(1).ok());
    if (residual != nullptr) std::memcpy(residual->data(), kept, count * sizeof(float));
    return {out, out + EncodedSize(codec, count)};
  }
  static std::size_t AheadOf(const CodecSeed& seed) {
    return static_cast<std::size_t>(seed.first_block) * kPlainCodecBlockSize;
  }
  Floats DecodedOnGpu(Codec codec, const std::vector<Bytes>& encoded, const Floats& before,
                      bool onto, std::uint32_t divisor, const CodecSeed& seed,
                      std::size_t shift = 0) {
    std::vector<const std::byte*> inputs;
    for (const Bytes& each : encoded) {
      std::byte* const input = OnHost(each.size());
      std::memcpy(input, each.data(), each.size());
      inputs.push_back(input);
    }
    std::byte* const out = OnGpu(1, before, 4 * shift);
    const EncodedRange range{.codec = codec,
                             .walk = WholeWalk(before.size() + seed.first_block * kCodecBlock),
                             .residual_walk = {},
                             .range = {seed.first_block * kCodecBlock, before.size()},
                             .memory = out - AheadOf(seed),
                             .seed = seed.seed};
    EXPECT_TRUE(codec_->DecodeSum(1, inputs, onto, divisor, range).ok());
    EXPECT_TRUE(Wait(1).ok());
    Floats result(before.size());
    std::memcpy(result.data(), out, result.size() * sizeof(float));
    return result;
  }

  static Bytes EncodedLosslessly(const Floats& values) {
    Bytes bytes(values.size() * sizeof(float));
    Floats copy = values;
    const EncodedRange range{.codec = Codec::kLossless,
                             .walk = WholeWalk(values.size()),
                             .residual_walk = {},
                             .range = {0, values.size()},
                             .memory = reinterpret_cast<std::byte*>(copy.data())};
    bytes.resize(EncodeLosslessRange(range, bytes.data()));
    return bytes;
  }

  struct Encoded {
    Bytes bytes;
    std::vector<std::uint32_t> table;
  };
  Encoded EncodedLosslesslyOnGpu(const Floats& values, bool as_it_is, std::size_t shift) {
    const std::size_t count = values.size();
    const std::size_t table_count = LosslessTableCount(count);
    std::byte* const out = OnHost(count * sizeof(float));
    auto* const table = reinterpret_cast<std::uint32_t*>(OnHost(4 * table_count));
    const EncodedRange range{.codec = Codec::kLossless,
                             .walk = WholeWalk(count),
                             .residual_walk = {},
                             .range = {0, count},
                             .memory = OnGpu(1, values, shift)};
    EXPECT_TRUE(codec_->EncodeLossless(1, range, as_it_is, out, table).ok());
    EXPECT_TRUE(Wait(1).ok());
    return {.bytes = {out, out + table[table_count - 1]}, .table = {table, table + table_count}};
  }
  Floats SummedLosslesslyOnGpu(const std::vector<Bytes>& messages, const Floats& before,
                               std::size_t own, std::uint32_t divisor, std::size_t shift) {
    const std::size_t count = before.size();
    std::vector<LosslessMessage> on_gpus;
    for (const Bytes& each : messages) {
      std::byte* const in = OnHost(each.size());
      std::memcpy(in, each.data(), each.size());
      on_gpus.push_back({.in = in});
      if (each.size() == count * sizeof(float)) continue;
      const std::size_t begins_count = LosslessBeginsCount(count);
      auto* const table = reinterpret_cast<std::uint32_t*>(OnHost(4 * begins_count));
      EXPECT_TRUE(FindLosslessBlocks(each, count, {table, begins_count}));
      on_gpus.back().table = table;
    }
    std::byte* const out = OnGpu(1, before, shift);
    const EncodedRange range{.codec = Codec::kLossless,
                             .walk = WholeWalk(count),
                             .residual_walk = {},
                             .range = {0, count},
                             .memory = out};
    EXPECT_TRUE(codec_->DecodeLossless(1, on_gpus, own, divisor, range).ok());
    EXPECT_TRUE(Wait(1).ok());
    return Read<float>(out, count);
  }

  std::mt19937_64 random_{17};
};

TEST_F(GpuCodecTest, EncodesTheBitsOfTheHost) {
  for (const Codec codec : kCodecs) {
    for (const std::size_t count : kCounts) {
      for (const Content content : kContents) {
        const CodecSeed seed{.seed = random_(), .first_block = random_() % 1000};
        const Floats values = Filled(content, count, random_);
        Floats on_host = Filled(content, count, random_);
        Floats on_gpu = on_host;
        Bytes expected(EncodedSize(codec, count));
        Encode(codec, values.data(), on_host.data(), count, expected.data(), seed);
        const Bytes encoded = EncodedOnGpu(codec, values, &on_gpu, seed, random_() % 4);
        ASSERT_EQ(encoded, expected)
            << Name(codec) << " of " << count << ", content " << static_cast<int>(content);
        ASSERT_EQ(BitsOf(on_gpu), BitsOf(on_host))
            << Name(codec) << " of " << count << ", content " << static_cast<int>(content);
      }
      FreeMemory();
    }
  }
}

TEST_F(GpuCodecTest, EncodesWithoutResidual) {
  for (const Codec codec : kCodecs) {
    const Floats values = Filled(Content::kGradients, 1000, random_);
    Bytes expected(EncodedSize(codec, values.size()));
    Encode(codec, values.data(), nullptr, values.size(), expected.data(), {.seed = 3});
    EXPECT_EQ(EncodedOnGpu(codec, values, nullptr, {.seed = 3}), expected) << Name(codec);
  }
}

TEST_F(GpuCodecTest, DecodesTheBitsOfTheHostFromAnyBytes) {
  for (const Codec codec : kCodecs) {
    for (const std::size_t count : kCounts) {
      for (std::uint32_t turn = 0; turn < 8; ++turn) {
        const std::size_t inputs_count = 1 + random_() % 5;
        const bool onto = turn % 2 == 1;
        const std::uint32_t divisor = turn % 4 < 2 ? 1 : 3;
        const CodecSeed seed{.seed = random_(), .first_block = random_() % 1000};
        std::vector<Bytes> encoded(inputs_count, Bytes(EncodedSize(codec, count)));
        for (Bytes& each : encoded) {
          if (turn < 4) {
            const Floats values = Filled(Content::kAnyBits, count, random_);
            Encode(codec, values.data(), nullptr, count, each.data(), seed);
          } else {
            for (std::byte& byte : each) byte = static_cast<std::byte>(random_());
          }
        }
        const Floats before = Filled(Content::kGradients, count, random_);
        Floats expected = before;
        std::vector<const std::byte*> inputs;
        for (const Bytes& each : encoded) inputs.push_back(each.data());
        DecodeSum(codec, inputs, count, onto, divisor, expected.data(), seed);
        const Floats decoded =
            DecodedOnGpu(codec, encoded, before, onto, divisor, seed, random_() % 4);
        ASSERT_EQ(BitsOf(decoded), BitsOf(expected))
            << Name(codec) << " of " << count << ", turn " << turn;
      }
      FreeMemory();
    }
  }
}

// So that a residual in as many pieces as elements takes several launches.
TEST_F(GpuCodecTest, TakesResidualsInAnyRuns) {
  for (const Codec codec : {Codec(Codec::kInt8), Codec(Codec::kSign), Codec(Codec::kTopK)}) {
    for (const std::size_t longest : {1U, 3U, 200U, 2000U}) {
      const std::size_t count = 3000;
      std::vector<transport::Run> runs;
      std::uint64_t offset = 0;
      std::uint64_t held = 0;
      while (held < count + 7) {
        const std::uint64_t run = 1 + random_() % longest;
        runs.push_back({.offset = offset, .count = run});
        offset += (run + 1 + random_() % 3) * sizeof(float);
        held += run;
      }
      Floats memory = Filled(Content::kGradients, offset / sizeof(float), random_);
      std::byte* const pinned = OnHost(offset);
      std::memcpy(pinned, memory.data(), offset);
      const Floats values = Filled(Content::kGradients, count, random_);
      EncodedRange range{.codec = codec,
                         .walk = WholeWalk(count),
                         .residual_walk = RunWalk(DType::kFloat32, count, runs, 7),
                         .range = {256, count - 256},
                         .memory = reinterpret_cast<std::byte*>(const_cast<float*>(values.data())),
                         .residual = reinterpret_cast<std::byte*>(memory.data()),
                         .seed = 5};
      Bytes expected(EncodedSize(codec, count - 256));
      EncodeRange(range, expected.data());
      std::byte* const out = OnHost(expected.size());
      range.memory = OnGpu(1, values);
      range.residual = pinned;
      ASSERT_TRUE(codec_->Encode(1, range, out).ok());
      ASSERT_TRUE(Wait(1).ok());
      ASSERT_EQ(Bytes(out, out + expected.size()), expected) << Name(codec) << " " << longest;
      ASSERT_EQ(BitsOf(reinterpret_cast<const float*>(pinned), memory.size()), BitsOf(memory));
    }
  }
}

// What was decoded, and the last residual, make up what was given.
TEST_F(GpuCodecTest, LosesNothingOverManySums) {
  constexpr std::size_t kCount = 1000;
  for (const Codec codec : kCodecs) {
    Floats residual(kCount);
    std::vector<double> given(kCount);
    std::vector<double> applied(kCount);
    for (std::uint64_t turn = 0; turn < 20; ++turn) {
      const Floats values = Filled(Content::kTies, kCount, random_);
      const CodecSeed seed{.seed = turn};
      const Bytes encoded = EncodedOnGpu(codec, values, &residual, seed);
      const Floats decoded = DecodedOnGpu(codec, {encoded}, Floats(kCount), false, 1, seed);
      for (std::size_t i = 0; i < kCount; ++i) {
        given[i] += double{values[i]};
        applied[i] += double{decoded[i]};
      }
      FreeMemory();
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(applied[i] + double{residual[i]}, given[i], 1e-4) << Name(codec) << " " << i;
    }
  }
}

TEST_F(GpuCodecTest, ReportsMemoryThatTheGpuDoesNotReach) {
  std::byte* const out = OnGpu(1, Bytes(EncodedSize(Codec::kInt8, 512)));
  const EncodedRange range{.codec = Codec::kInt8,
                           .walk = WholeWalk(512),
                           .residual_walk = {},
                           .range = {0, 512},
                           .memory = OnGpu(1, Floats(512, 1))};
  Bytes not_pinned(EncodedSize(Codec::kInt8, 512));
  ASSERT_TRUE(codec_->Encode(0, range, not_pinned.data()).ok());
  const Status ended = Wait(0);
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code(), Code::kUnavailable);
  // Nothing runs on a GPU whose context is broken; the other goes on.
  EXPECT_FALSE(codec_->Encode(0, range, out).ok());
  EXPECT_TRUE(codec_->Encode(1, range, out).ok());
  EXPECT_TRUE(Wait(1).ok());
}

TEST_F(GpuCodecTest, HasNoRoomForMoreThanAStreamTakes) {
  const Floats values(256, 1);
  std::byte* const memory = OnGpu(0, values);
  std::byte* const out = OnHost(EncodedSize(Codec::kInt8, values.size()));
  const EncodedRange range{.codec = Codec::kInt8,
                           .walk = WholeWalk(256),
                           .residual_walk = {},
                           .range = {0, 256},
                           .memory = memory};
  std::size_t started = 0;
  for (; codec_->HasRoom(0) && started < 100'000; ++started) {
    ASSERT_TRUE(codec_->Encode(0, range, out).ok());
  }
  EXPECT_EQ(started, 256U);
  EXPECT_TRUE(codec_->HasRoom(1));
  ASSERT_TRUE(Wait(0).ok());
  EXPECT_TRUE(codec_->HasRoom(0));
}

TEST_F(GpuCodecTest, EncodesLosslesslyTheBytesOfTheHost) {
  std::size_t coded = 0;
  std::size_t plain = 0;
  for (const std::size_t count : kLosslessCounts) {
    for (const Content content : kContents) {
      const Floats values = FilledForLossless(content, count, random_);
      const Bytes expected = EncodedLosslessly(values);
      const Encoded on_gpu = EncodedLosslesslyOnGpu(values, false, 4 * (random_() % 4));
      ASSERT_EQ(on_gpu.bytes, expected) << count << ", content " << static_cast<int>(content);
      const bool as_they_are = expected.size() == count * sizeof(float);
      (as_they_are ? plain : coded) += 1;
      if (as_they_are) continue;
      std::vector<std::uint32_t> begins(LosslessBeginsCount(count));
      ASSERT_TRUE(FindLosslessBlocks(expected, count, begins));
      ASSERT_EQ(std::vector(on_gpu.table.begin(), on_gpu.table.end() - 1), begins);
    }
    FreeMemory();
  }
  EXPECT_GT(coded, 10U);
  EXPECT_GT(plain, 10U);
}

TEST_F(GpuCodecTest, CopiesWhatIsNotToBeCoded) {
  const Floats values(5000, 1);
  const Encoded on_gpu = EncodedLosslesslyOnGpu(values, true, 0);
  ASSERT_EQ(on_gpu.bytes.size(), values.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(on_gpu.bytes.data(), values.data(), on_gpu.bytes.size()), 0);
}

// Among encodings are elements as they are; the own ones are added before any of them, or not.
TEST_F(GpuCodecTest, SumsWhatIsLosslessToTheBitsOfTheHost) {
  for (const std::size_t count : kLosslessCounts) {
    for (std::uint32_t turn = 0; turn < 12; ++turn) {
      const std::size_t messages_count = 1 + random_() % 4;
      const std::size_t own = turn % 3 == 0 ? kNowhere : random_() % (messages_count + 1);
      const std::uint32_t divisor = turn % 2 == 0 ? 1 : 3;
      std::vector<Bytes> messages;
      for (std::size_t i = 0; i < messages_count; ++i) {
        const Content content = kContents[random_() % std::size(kContents)];
        messages.push_back(EncodedLosslessly(FilledForLossless(content, count, random_)));
      }
      const Floats before = Filled(Content::kGradients, count, random_);
      Floats expected = before;
      std::vector<std::span<const std::byte>> spans(messages.begin(), messages.end());
      const Reduction reduction = divisor == 1 ? Reduction::kSum : Reduction::kAverage;
      const EncodedRange range{.codec = Codec::kLossless,
                               .walk = WholeWalk(count),
                               .residual_walk = {},
                               .range = {0, count},
                               .memory = reinterpret_cast<std::byte*>(expected.data())};
      ASSERT_FALSE(ReduceLosslessRange(spans, own, reduction, divisor, range));
      const Floats summed =
          SummedLosslesslyOnGpu(messages, before, own, divisor, 4 * (random_() % 4));
      ASSERT_EQ(BitsOf(summed), BitsOf(expected)) << count << ", turn " << turn;
    }
    FreeMemory();
  }
}

TEST_F(GpuCodecTest, AddsResidualsInAnyRunsAsTheHostDoes) {
  for (const std::size_t longest : {1U, 200U, 2000U}) {
    const std::size_t count = 3000;
    std::vector<transport::Run> runs;
    std::uint64_t offset = 0;
    for (std::uint64_t held = 0; held < count + 7;) {
      const std::uint64_t run = 1 + random_() % longest;
      runs.push_back({.offset = offset, .count = run});
      offset += (run + random_() % 3) * sizeof(float);
      held += run;
    }
    Floats memory = Filled(Content::kGradients, offset / sizeof(float), random_);
    std::byte* const pinned = OnHost(offset);
    std::memcpy(pinned, memory.data(), offset);
    Floats values = Filled(Content::kTies, count, random_);
    for (float& value : values) value = value == 0 ? -0.0F : value;
    std::byte* const on_gpu = OnGpu(1, values);
    EncodedRange range{.codec = Codec::kLossless,
                       .walk = WholeWalk(count),
                       .residual_walk = RunWalk(DType::kFloat32, count, runs, 7),
                       .range = {256, count - 256},
                       .memory = reinterpret_cast<std::byte*>(values.data()),
                       .residual = reinterpret_cast<std::byte*>(memory.data())};
    AddResidual(range);
    range.memory = on_gpu;
    range.residual = pinned;
    ASSERT_TRUE(codec_->AddResidual(1, range).ok());
    ASSERT_TRUE(Wait(1).ok());
    ASSERT_EQ(BitsOf(reinterpret_cast<const float*>(on_gpu), count), BitsOf(values)) << longest;
    ASSERT_EQ(BitsOf(reinterpret_cast<const float*>(pinned), memory.size()), BitsOf(memory));
    FreeMemory();
  }
}

// As mapping pins it.
TEST_F(GpuCodecTest, EncodesOnOverPartsOfPinnedMemory) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kBlocks = 2 * kPage / 260;
  auto memory = Mapping::Anonymous(2 * kPage);
  ASSERT_TRUE(memory.ok());
  PinnedRange pinned;
  for (std::size_t page = 0; page < 2; ++page) {
    ASSERT_TRUE(pinned.Append(*gpus_, {memory->data() + page * kPage, kPage}).ok());
  }
  const EncodedRange range{.codec = Codec::kInt8,
                           .walk = WholeWalk(kBlocks * 256),
                           .residual_walk = {},
                           .range = {0, kBlocks * 256},
                           .memory = OnGpu(0, Floats(kBlocks * 256, 2))};
  ASSERT_TRUE(codec_->Encode(0, range, pinned.on_gpus()).ok());
  ASSERT_TRUE(Wait(0).ok());
  for (std::size_t block = 0; block < kBlocks; ++block) {
    float scale = 0;
    std::memcpy(&scale, memory->data() + block * 260, sizeof scale);
    ASSERT_EQ(scale, 2.0F / 127) << block;
  }
  EXPECT_FALSE(pinned.UnpinEnd());
  EXPECT_TRUE(pinned.UnpinEnd());
}

}  // namespace
}  // namespace headrace::transport
