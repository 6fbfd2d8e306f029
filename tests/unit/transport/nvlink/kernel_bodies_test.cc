// What threads of a kernel do, on the host: at every place in a unit, for any number of threads.
#include "transport/nvlink/kernel_bodies.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/contract/patterns.h"
#include "tests/support/loopback/reference.h"
#include "transport/nvlink/kernel_list.h"

namespace headrace::transport {
namespace {

using kernels::BFloat16;
using kernels::CopyBody;
using kernels::Float16;
using kernels::ReduceBody;
using kernels::Sum;
using Body = void (*)(const KernelWork&, std::uint32_t, std::uint32_t);

constexpr std::size_t kGuardSize = 64;
constexpr std::byte kGuard{0xA5};

// A buffer that begins `shift` bytes behind a unit's begin, between guards.
class Buffer {
 public:
  Buffer(std::vector<std::byte> bytes, std::size_t shift)
      : size_(bytes.size()), memory_(size_ / kUnitSize + 2 * kGuardSize / kUnitSize + 2) {
    std::ranges::fill(Bytes(), kGuard);
    start_ = Bytes().data() + kGuardSize + shift;
    std::ranges::copy(bytes, start_);
  }
  Buffer(Buffer&&) = default;

  std::byte* start() const { return start_; }
  std::vector<std::byte> Content() const { return {start_, start_ + size_}; }
  bool GuardsAreWhole() {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    const auto bytes = Bytes();
    return std::all_of(bytes.data(), start_, is_guard) &&
           std::all_of(start_ + size_, bytes.data() + bytes.size(), is_guard);
  }

 private:
  struct alignas(kUnitSize) Unit {
    std::array<std::byte, kUnitSize> bytes;
  };
  std::span<std::byte> Bytes() { return std::as_writable_bytes(std::span<Unit>(memory_)); }

  std::size_t size_;
  std::vector<Unit> memory_;
  std::byte* start_ = nullptr;
};

// One stretch for each of `sizes`, one behind the other with `gap` bytes between.
KernelWork WorkOver(const std::vector<Buffer>& buffers, const std::vector<std::uint32_t>& sizes,
                    std::uint32_t gap) {
  KernelWork work{};
  std::uintptr_t places = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    work.inputs[i] = work.outputs[i] = buffers[i].start();
    places |= AddressOf(buffers[i].start()) % kUnitSize ^ AddressOf(buffers[0].start()) % kUnitSize;
  }
  work.aligned = places == 0;
  work.inputs_count = static_cast<std::uint32_t>(buffers.size());
  std::uint64_t offset = 0;
  std::uint32_t units = 0;
  for (const std::uint32_t size : sizes) {
    KernelStretch& stretch = work.stretches[work.stretches_count++];
    stretch = {.offset = offset,
               .packed_offset = offset,
               .size = size,
               .units_end = 0,
               .first_input = 0,
               .first_output = 0,
               .outputs_count = static_cast<std::uint16_t>(buffers.size())};
    stretch.units_end = units += UnitsOf(work, stretch);
    offset += size + gap;
  }
  return work;
}

void RunThreads(Body body, const KernelWork& work, std::uint32_t threads) {
  // Backwards: no order among threads is promised.
  for (std::uint32_t thread = threads; thread > 0; --thread) body(work, thread - 1, threads);
}

void ExpectReference(DType dtype, Body body, const std::vector<std::size_t>& shifts,
                     const std::vector<std::uint32_t>& sizes, std::uint32_t threads) {
  const auto gap = static_cast<std::uint32_t>(3 * SizeOf(dtype));
  std::size_t extent = 0;
  for (const std::uint32_t size : sizes) extent += size + gap;
  std::mt19937_64 random(extent + threads);
  std::vector<Buffer> buffers;
  std::vector<Buffer> expected;
  for (const std::size_t shift : shifts) {
    auto bytes = AwkwardElements(dtype, extent / SizeOf(dtype), random);
    buffers.emplace_back(bytes, shift);
    expected.emplace_back(std::move(bytes), shift);
  }
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (const Buffer& buffer : expected) {
    inputs.push_back(buffer.start());
    outputs.push_back(buffer.start());
  }
  std::size_t offset = 0;
  for (const std::uint32_t size : sizes) {
    ReferenceReduce(dtype, Reduction::kSum, inputs, outputs, offset, size / SizeOf(dtype));
    offset += size + gap;
  }
  RunThreads(body, WorkOver(buffers, sizes, gap), threads);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(buffers[i].Content(), expected[i].Content())
        << "buffer " << i << ", " << threads << " threads, shifts " << shifts[0] << " "
        << shifts[1];
    ASSERT_TRUE(buffers[i].GuardsAreWhole());
  }
}

constexpr Body kSumBytes = &ReduceBody<kernels::Plain<std::uint8_t>, Sum, false>;
constexpr Body kSumFloats = &ReduceBody<kernels::Plain<float>, Sum, true>;
constexpr Body kSumDoubles = &ReduceBody<kernels::Plain<double>, Sum, true>;
constexpr Body kSumHalves = &ReduceBody<Float16, Sum, true>;
constexpr Body kSumBFloats = &ReduceBody<BFloat16, Sum, true>;

TEST(KernelBodies, SumBytesAtEveryCombinationOfPlaces) {
  for (std::size_t a = 0; a < kUnitSize; ++a) {
    for (std::size_t b = 0; b < kUnitSize; ++b) {
      for (const std::uint32_t size : {1U, 15U, 16U, 17U, 300U}) {
        ASSERT_NO_FATAL_FAILURE(ExpectReference(DType::kUInt8, kSumBytes, {a, b}, {size}, 3));
      }
    }
  }
}

TEST(KernelBodies, SumEveryTypeAtEveryPlaceOfItsElements) {
  struct Type {
    DType dtype;
    Body body;
  };
  for (const auto& [dtype, body] :
       {Type{DType::kFloat32, kSumFloats}, Type{DType::kFloat64, kSumDoubles},
        Type{DType::kFloat16, kSumHalves}, Type{DType::kBFloat16, kSumBFloats}}) {
    const std::size_t size = SizeOf(dtype);
    for (std::size_t a = 0; a < kUnitSize; a += size) {
      for (std::size_t b = 0; b < kUnitSize; b += size) {
        for (const std::uint32_t count : {1U, 2U, 9U, 333U}) {
          const auto bytes = static_cast<std::uint32_t>(count * size);
          ASSERT_NO_FATAL_FAILURE(ExpectReference(dtype, body, {a, b, a}, {bytes}, 5));
        }
      }
    }
  }
}

// The loops for 2, 4 and 8 inputs, and the one for any number, with many units for each thread.
TEST(KernelBodies, SumAnyNumberOfBuffersByAnyNumberOfThreads) {
  for (const std::size_t buffers : {2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 17U, 64U}) {
    for (const std::size_t shift : {0U, 4U, 12U}) {
      for (const std::uint32_t threads : {1U, 7U, 64U, 2000U}) {
        const std::vector<std::size_t> shifts(buffers, shift);
        ASSERT_NO_FATAL_FAILURE(
            ExpectReference(DType::kFloat32, kSumFloats, shifts, {4 * 1234}, threads));
        ASSERT_NO_FATAL_FAILURE(
            ExpectReference(DType::kFloat16, kSumHalves, shifts, {2 * 1235}, threads));
      }
    }
  }
}

TEST(KernelBodies, FindTheirWayThroughManyStretches) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::uint32_t> sizes(1 + random() % kStretchesMax);
    for (std::uint32_t& size : sizes) size = static_cast<std::uint32_t>(2 * (1 + random() % 100));
    const auto threads = static_cast<std::uint32_t>(1 + random() % 100);
    const std::size_t shift = 2 * (random() % 8);
    ASSERT_NO_FATAL_FAILURE(ExpectReference(
        DType::kBFloat16, kSumBFloats, {shift, round % 2 == 0 ? shift : 2, shift}, sizes, threads));
  }
}

TEST(KernelBodies, CopyAtEveryCombinationOfPlaces) {
  std::mt19937_64 random(2);
  const std::vector<std::uint32_t> sizes = {1, 40, 333};
  for (std::size_t a = 0; a < kUnitSize; ++a) {
    for (std::size_t b = 0; b < kUnitSize; ++b) {
      std::vector<Buffer> buffers;
      buffers.emplace_back(AwkwardElements(DType::kUInt8, 400, random), a);
      buffers.emplace_back(AwkwardElements(DType::kUInt8, 400, random), b);
      const auto from = buffers[0].Content();
      auto expected = buffers[1].Content();
      std::size_t offset = 0;
      for (const std::uint32_t size : sizes) {
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(offset), size,
                    expected.begin() + static_cast<std::ptrdiff_t>(offset));
        offset += size + 5;
      }
      KernelWork work = WorkOver(buffers, sizes, 5);
      for (std::uint32_t i = 0; i < work.stretches_count; ++i) {
        work.stretches[i].first_output = 1;
        work.stretches[i].outputs_count = 1;
      }
      RunThreads(&CopyBody, work, 3);
      ASSERT_EQ(buffers[1].Content(), expected) << a << " " << b;
      ASSERT_EQ(buffers[0].Content(), from);
      ASSERT_TRUE(buffers[1].GuardsAreWhole());
    }
  }
}

// All 65,536 codes there and back, and float32 numbers at and around every border of rounding.
TEST(KernelBodies, ConvertHalvesAsTheReferenceDoes) {
  for (std::uint32_t code = 0; code <= 0xFFFF; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const double half = DecodeFloat16(bits);
    const double brain = DecodeBFloat16(bits);
    if (std::isnan(half)) {
      ASSERT_TRUE(std::isnan(Float16::Decode(bits)));
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(Float16::Decode(bits)),
                std::bit_cast<std::uint32_t>(static_cast<float>(half)));
    }
    for (const double value : {half, brain}) {
      for (const float toward : {-INFINITY, 0.0F, INFINITY}) {
        const auto near = static_cast<float>(value);
        for (const float number : {near, std::nextafter(near, toward), near * 1.00048828125F,
                                   near * 1.0009765625F, near * 1.00390625F}) {
          ASSERT_EQ(Float16::Encode(number), EncodeFloat16(number)) << number;
          ASSERT_EQ(BFloat16::Encode(number), EncodeBFloat16(number)) << number;
        }
      }
    }
  }
}

// Where the inverse is a power of two and is multiplied by, and where it is not.
TEST(KernelBodies, AverageAsADivisionDoes) {
  std::mt19937_64 random(3);
  std::vector<float> sums(4096);
  for (float& sum : sums) sum = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  const auto twice = [](float value) { return static_cast<double>(value); };
  for (const std::uint32_t divisor :
       {1U, 2U, 3U, 7U, 8U, 1000U, 1U << 16U, 1U << 31U, UINT32_MAX}) {
    KernelWork work{};
    SetAverage(work, divisor, true);
    EXPECT_EQ(work.divisor == 0, std::has_single_bit(divisor));
    for (const float sum : sums) {
      if (std::isnan(sum)) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(Sum::Finish(sum, work)),
                std::bit_cast<std::uint32_t>(sum / static_cast<float>(divisor)))
          << sum << " / " << divisor;
      ASSERT_EQ(Sum::Finish(twice(sum), work), twice(sum) / divisor) << sum << " / " << divisor;
    }
    SetAverage(work, divisor, false);
    EXPECT_EQ(Sum::Finish(std::int64_t{-1001}, work), -1001 / std::int64_t{divisor});
  }
  EXPECT_EQ(Sum::Finish(5.5F, KernelWork{}), 5.5F) << "no average";
}

using KernelBodiesDeathTest = ::testing::Test;

TEST(KernelBodiesDeathTest, RefuseAnAccessThatWouldBreakAGpusContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<Buffer> buffers;
  buffers.emplace_back(std::vector<std::byte>(64), 0);
  buffers.emplace_back(std::vector<std::byte>(64), 4);
  KernelWork work = WorkOver(buffers, {64}, 0);
  ASSERT_FALSE(work.aligned);
  work.aligned = true;
  EXPECT_DEATH(kSumFloats(work, 0, 1), "");
}

}  // namespace
}  // namespace headrace::transport
