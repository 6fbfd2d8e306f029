// Matrices that cross as two factors and are a GPU's, on a double of CUDA's driver: the bits of the
// host, step by step.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/transport/nvlink/lane_of_gpus.h"
#include "transport/codec/low_rank.h"
#include "transport/nvlink/gpu_codec.h"

namespace headrace::transport {
namespace {

using Floats = std::vector<float>;
using Bits = std::vector<std::uint32_t>;

constexpr float kMost = std::numeric_limits<float>::max();

// Of sums that are no numbers it does not count which.
Bits MatrixBits(const float* values, std::size_t count, bool any_nan = false) {
  Bits bits(count);
  std::memcpy(bits.data(), values, count * sizeof(float));
  for (std::size_t i = 0; i < count && any_nan; ++i) {
    if (std::isnan(values[i])) bits[i] = 0x7FC00000;
  }
  return bits;
}
Bits MatrixBits(const Floats& values, bool any_nan = false) {
  return MatrixBits(values.data(), values.size(), any_nan);
}

struct Shape {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint32_t rank = 0;
  std::string Text() const {
    return std::to_string(rows) + " x " + std::to_string(columns) + " rank " + std::to_string(rank);
  }
};
// Around the shares of warps, and the columns that the host takes together.
constexpr Shape kShapes[] = {{1, 1, 1},   {3, 5, 2},     {4, 8, 4},     {5, 9, 5},
                             {33, 31, 8}, {64, 64, 3},   {100, 60, 4},  {7, 513, 7},
                             {513, 7, 2}, {40, 1030, 1}, {77, 131, 32}, {300, 301, 9}};

enum class MatrixContent : std::uint8_t { kGradients, kTiny, kHuge, kAnyBits };

Floats MatrixFilled(MatrixContent content, std::size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) {
    const auto bits = static_cast<std::uint32_t>(random());
    value = normal(random);
    if (content == MatrixContent::kTiny) value = std::bit_cast<float>(bits & 0x80FFFFFFU);
    if (content == MatrixContent::kHuge) value = std::copysign(kMost / 3, value);
    if (content == MatrixContent::kAnyBits) value = std::bit_cast<float>(bits);
    if (bits % 16 == 0) value = -0.0F;
  }
  return values;
}

// The left factor, the right one, and the node's own part of it.
Floats Factors(const Shape& shape, std::mt19937_64& random) {
  return MatrixFilled(MatrixContent::kGradients, shape.rank * (shape.rows + 2 * shape.columns),
                      random);
}

class GpuFactorsTest : public LaneOfGpus {
 protected:
  void SetUp() override {
    Start(2);
    if (HasFatalFailure()) return;
    auto codec = GpuCodec::Open(*gpus_, 2);
    ASSERT_TRUE(codec.ok()) << codec.error().text();
    codec_ = std::move(*codec);
  }
  void TearDown() override {
    codec_.reset();
    LaneOfGpus::TearDown();
  }
  void Finish(const Status& started) {
    ASSERT_TRUE(started.ok()) << started.error().text();
    const std::uint64_t ticket = codec_->TicketOf(1);
    for (;;) {
      codec_->Poll();
      if (const auto ended = codec_->Ended(1, ticket)) {
        ASSERT_TRUE(ended->ok()) << ended->error().text();
        return;
      }
      std::this_thread::yield();
    }
  }
  // On GPU 1, its residual and factors on the host.
  DeviceMatrix MatrixOf(const Shape& shape, const Floats& values, const Floats* residual,
                        const Floats& factors) {
    float* kept = nullptr;
    if (residual != nullptr) {
      kept = reinterpret_cast<float*>(OnHost(residual->size() * sizeof(float), 4));
      std::ranges::copy(*residual, kept);
    }
    auto* const pinned = reinterpret_cast<float*>(OnHost(factors.size() * sizeof(float)));
    std::ranges::copy(factors, pinned);
    return {.rows = {.values = reinterpret_cast<float*>(OnGpu(1, values, 4)),
                     .residual = kept,
                     .rows = shape.rows,
                     .columns = shape.columns,
                     .rank = shape.rank},
            .factors = reinterpret_cast<float*>(OnGpu(1, Floats(factors.size()))),
            .on_host = pinned};
  }
  void ExpectTheBitsOfTheHost(const Shape& shape, MatrixContent content, bool has_residual,
                              std::uint32_t divisor);

  std::mt19937_64 random_{29};
  std::unique_ptr<GpuCodec> codec_;
};

// The steps of one sum of one node.
void GpuFactorsTest::ExpectTheBitsOfTheHost(const Shape& shape, MatrixContent content,
                                            bool has_residual, std::uint32_t divisor) {
  const std::uint64_t count = shape.rows * shape.columns;
  Floats values = MatrixFilled(content, count, random_);
  Floats residual = MatrixFilled(content, count, random_);
  Floats factors = Factors(shape, random_);
  const DeviceMatrix matrix = MatrixOf(shape, values, has_residual ? &residual : nullptr, factors);
  const MatrixRows rows{.values = values.data(),
                        .residual = has_residual ? residual.data() : nullptr,
                        .rows = shape.rows,
                        .columns = shape.columns,
                        .rank = shape.rank};
  float* const p = factors.data();
  float* const q = p + matrix.LeftCount();
  float* const own_q = q + matrix.RightCount();

  MultiplyByRightFactor(rows, q, p);
  ASSERT_NO_FATAL_FAILURE(Finish(codec_->MakeLeftFactor(1, matrix)));
  ASSERT_EQ(MatrixBits(matrix.on_host, factors.size(), true), MatrixBits(factors, true));
  OrthonormalBasis basis(shape.rank);
  basis.Add(p, shape.rows);
  const bool is_finite = basis.Finish();
  if (is_finite) {
    basis.Replace(p, shape.rows);
    std::copy_n(p, matrix.LeftCount(), matrix.on_host);
    std::fill_n(own_q, matrix.RightCount(), 0.0F);
    AddToRightFactor(rows, p, own_q);
    ASSERT_NO_FATAL_FAILURE(Finish(codec_->MakeRightFactor(1, matrix)));
    ASSERT_EQ(MatrixBits(matrix.on_host, factors.size(), true), MatrixBits(factors, true));
    // Others have theirs, too.
    for (std::uint64_t i = 0; i < matrix.RightCount(); ++i) q[i] = own_q[i] + q[i];
    std::copy_n(q, matrix.RightCount(), matrix.on_host + matrix.LeftCount());
    transport::WriteProduct(rows, p, q, own_q, divisor);
  } else {
    WriteNotFinite(rows);
  }
  ASSERT_NO_FATAL_FAILURE(Finish(codec_->WriteProduct(1, matrix, divisor, is_finite)));
  ASSERT_EQ(MatrixBits(matrix.rows.values, count), MatrixBits(values));
  if (has_residual) {
    ASSERT_EQ(MatrixBits(matrix.rows.residual, count), MatrixBits(residual));
  }
}

TEST_F(GpuFactorsTest, HaveTheBitsOfTheHost) {
  for (const Shape& shape : kShapes) {
    for (const MatrixContent content : {MatrixContent::kGradients, MatrixContent::kTiny,
                                        MatrixContent::kHuge, MatrixContent::kAnyBits}) {
      for (const bool has_residual : {true, false}) {
        const std::uint32_t divisor = has_residual ? 3 : 1;
        ASSERT_NO_FATAL_FAILURE(ExpectTheBitsOfTheHost(shape, content, has_residual, divisor))
            << shape.Text() << ", content " << static_cast<int>(content);
        FreeMemory();
      }
    }
  }
}

// Where two products are too large for a number, and their sum is none.
TEST_F(GpuFactorsTest, HaveOneNaNAsTheHostDoes) {
  const Shape shape{6, 70, 2};
  const std::uint64_t count = shape.rows * shape.columns;
  Floats values = MatrixFilled(MatrixContent::kGradients, count, random_);
  Floats residual(count);
  Floats factors(shape.rank * (shape.rows + 2 * shape.columns), kMost);
  for (std::uint64_t i = 0; i < 2 * shape.rows; ++i) factors[i] = i % 2 == 0 ? 2.0F : -2.0F;
  const DeviceMatrix matrix = MatrixOf(shape, values, &residual, factors);
  const MatrixRows rows{.values = values.data(),
                        .residual = residual.data(),
                        .rows = shape.rows,
                        .columns = shape.columns,
                        .rank = shape.rank};
  const float* const q = factors.data() + matrix.LeftCount();
  const float* const own_q = q + matrix.RightCount();
  transport::WriteProduct(rows, factors.data(), q, own_q, 2);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(values[0]), 0x7FC00000U);
  // As the steps before would have left them.
  std::memcpy(matrix.factors, factors.data(), factors.size() * sizeof(float));
  ASSERT_NO_FATAL_FAILURE(Finish(codec_->WriteProduct(1, matrix, 2, true)));
  EXPECT_EQ(MatrixBits(matrix.rows.values, count), MatrixBits(values));
  EXPECT_EQ(MatrixBits(matrix.rows.residual, count), MatrixBits(residual));
}

}  // namespace
}  // namespace headrace::transport
