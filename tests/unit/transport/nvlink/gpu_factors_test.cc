// Matrices that cross as two factors and are a GPU's, on a double of CUDA's driver: the bits of the
// host, step by step, and in sums of nodes of both kinds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/matrix.h"
#include "tests/unit/transport/nvlink/codecs_of_gpus.h"
#include "transport/codec/low_rank.h"
#include "transport/exchange/factor_sum.h"
#include "transport/exchange/gpu_times.h"

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

class GpuFactorsTest : public CodecOfGpus {
 protected:
  void Finish(const Status& started) {
    ASSERT_TRUE(started.ok()) << started.error().text();
    const Status ended = Wait(1);
    ASSERT_TRUE(ended.ok()) << ended.error().text();
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
    constexpr std::uint64_t kRowsOfPart = 70;
    for (std::uint64_t row = 0; row < shape.rows; row += kRowsOfPart) {
      const RowRange part{row, std::min(shape.rows, row + kRowsOfPart)};
      ASSERT_NO_FATAL_FAILURE(Finish(codec_->MakeRightFactor(1, matrix, part)));
    }
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

// The second waits for the first on the GPU, which is not at work for it meanwhile.
TEST_F(GpuFactorsTest, AreChargedForTheTimeOfTheirGpuOnce) {
  const Shape shape{33, 31, 8};
  const std::uint64_t count = shape.rows * shape.columns;
  const Floats residual(count);
  GpuTimes times;
  std::array<CodecUse, 2> uses{};
  std::array<FactorSum, 2> sums;
  for (FactorSum& sum : sums) {
    const DeviceMatrix matrix =
        MatrixOf(shape, MatrixFilled(MatrixContent::kGradients, count, random_), &residual,
                 Factors(shape, random_));
    auto* const factors = reinterpret_cast<std::byte*>(matrix.on_host);
    auto* const values = reinterpret_cast<std::byte*>(matrix.rows.values);
    auto* const kept = reinterpret_cast<std::byte*>(matrix.rows.residual);
    const Transfer transfer{.kind = Collective::kAllReduce,
                            .dtype = DType::kFloat32,
                            .count = count,
                            .codec = {Codec::kPowerSgd, static_cast<std::uint8_t>(shape.rank)},
                            .rows = shape.rows,
                            .factors = factors,
                            .factors_on_gpus = factors,
                            .factors_of_gpu = reinterpret_cast<std::byte*>(matrix.factors)};
    sum = FactorSum(transfer, SpecOf(transfer), values, kept);
    sum.UseGpu(*codec_, 1, transfer, kept);
  }
  const TimeNs begin = MonotonicNow();
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i].Step(uses[i]);
  ASSERT_TRUE(Wait(1).ok());
  std::optional<PieceFault> fault;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_TRUE(sums[i].EndGpuWork(times, uses[i], fault));
    EXPECT_FALSE(fault.has_value());
  }
  EXPECT_GT(uses[0].encode_ns, 0);
  EXPECT_LE(uses[0].encode_ns + uses[1].encode_ns, MonotonicNow() - begin);
}

TEST(GpuTimes, AreThoseOfEachGpu) {
  GpuTimes times;
  EXPECT_EQ(times.OnEnded(0, 100, 150), 50);
  EXPECT_EQ(times.OnEnded(0, 110, 170), 20) << "it had waited for the first";
  EXPECT_EQ(times.OnEnded(1, 120, 180), 60) << "another GPU waits for neither";
  EXPECT_EQ(times.OnEnded(0, 200, 210), 10) << "the GPU had nothing to do";
}

struct MatrixCase {
  Shape shape{100, 60, 4};
  std::uint32_t nodes = 2;
  Algorithm algorithm = Algorithm::kAuto;
  std::uint32_t servers = 0;
  std::uint32_t on_gpu = 0;  // nodes from the first on; the others are the host's
  bool has_residual = true;
  int infinite_in = 0;  // an iteration with a value that is not finite

  Codec codec() const { return {Codec::kPowerSgd, static_cast<std::uint8_t>(shape.rank)}; }
  std::uint64_t count() const { return shape.rows * shape.columns; }
  std::uint64_t factors_count() const { return FactorMemoryCount(codec(), shape.rows, count()); }
  std::uint64_t right_count() const { return shape.rank * shape.columns; }
  std::string Text() const {
    return shape.Text() + " nodes " + std::to_string(nodes) + " algorithm " +
           std::to_string(static_cast<int>(algorithm)) + " servers " + std::to_string(servers) +
           " on GPUs " + std::to_string(on_gpu);
  }
};

// By node: what sums have left it.
struct MatrixOutcome {
  std::vector<Bits> results;
  std::vector<Bits> residuals;
  std::vector<Bits> right_factors;
  CodecUse use;
};

// What a node has: all of it for the whole test, so that a lane may end at any time.
struct NodeMatrix {
  std::byte* values = nullptr;  // and behind them factors
  std::byte* residual = nullptr;
  std::byte* factors = nullptr;
  Floats right_factor;
};

class GpuFactorExchange : public CodecsOfNodes {
 protected:
  void MakeMatrices(const MatrixCase& test) {
    matrices_.clear();
    for (std::uint32_t node = 0; node < test.nodes; ++node) {
      const std::size_t factors_size = test.factors_count() * sizeof(float);
      NodeMatrix matrix{.values = OnGpu(node % 2, Floats(test.count() + test.factors_count())),
                        .residual = OnHost(test.count() * sizeof(float)),
                        .factors = OnHost(factors_size),
                        .right_factor = Floats(test.right_count())};
      matrices_.push_back(std::move(matrix));
    }
  }
  void Fill(const MatrixCase& test, int iteration, std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    for (const NodeMatrix& matrix : matrices_) {
      Floats values(test.count());
      for (float& value : values) value = normal(random);
      if (iteration == test.infinite_in) values[7] = std::numeric_limits<float>::infinity();
      std::memcpy(matrix.values, values.data(), values.size() * sizeof(float));
      // Whatever was there before.
      std::memset(matrix.factors, 0x7F, test.factors_count() * sizeof(float));
    }
  }
  Transfer TransferOf(const MatrixCase& test, std::uint32_t node, std::uint64_t position) {
    NodeMatrix& matrix = matrices_[node];
    Transfer transfer{.token = position,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kFloat32,
                      .reduction = Reduction::kAverage,
                      .count = test.count(),
                      .divisor = 2 * test.nodes,
                      .position = position,
                      .members_count = test.nodes,
                      .codec = test.codec(),
                      .residual = test.has_residual ? matrix.residual : nullptr,
                      .rows = test.shape.rows,
                      .factors = matrix.factors,
                      .right_factor = reinterpret_cast<std::byte*>(matrix.right_factor.data()),
                      .seed = position};
    transfer.members[node] = matrix.values;
    if (node < test.on_gpu) {
      transfer.devices[node] = static_cast<std::int8_t>(node % 2);
      transfer.residual_on_gpus = transfer.residual;
      transfer.factors_on_gpus = matrix.factors;
      transfer.factors_of_gpu = matrix.values + test.count() * sizeof(float);
    }
    return transfer;
  }
  MatrixOutcome SumsOf(const MatrixCase& test, int iterations) {
    MatrixOutcome outcome;
    MakeMatrices(test);
    {
      Fleet fleet(OptionsOf(test));
      std::mt19937_64 random(7);
      for (int iteration = 1; iteration <= iterations; ++iteration) {
        Fill(test, iteration, random);
        for (std::uint32_t node = 0; node < test.nodes; ++node) {
          fleet.Post(node, TransferOf(test, node, static_cast<std::uint64_t>(iteration)));
        }
        fleet.RunToTheEnd();
      }
      for (std::uint32_t node = 0; node < test.nodes; ++node) {
        EXPECT_EQ(fleet.completions(node).size(), static_cast<std::size_t>(iterations));
        for (const Completion& completion : fleet.completions(node)) {
          EXPECT_EQ(completion.code, Code::kOk) << test.Text() << ": " << completion.cause;
          EXPECT_LT(completion.begin_ns, kNever);
        }
      }
      outcome.use = fleet.completions(0).back().codec;
    }
    for (const NodeMatrix& matrix : matrices_) {
      outcome.results.push_back(Read<std::uint32_t>(matrix.values, test.count()));
      outcome.residuals.push_back(Read<std::uint32_t>(matrix.residual, test.count()));
      outcome.right_factors.push_back(MatrixBits(matrix.right_factor));
    }
    FreeMemory();
    return outcome;
  }
  void ExpectLikeOnTheHost(MatrixCase test, int iterations) {
    const MatrixOutcome on_host = SumsOf(test, iterations);
    // Some nodes on GPUs, and all of them.
    for (const std::uint32_t on_gpu : {1U, test.nodes}) {
      test.on_gpu = on_gpu;
      const MatrixOutcome on_gpus = SumsOf(test, iterations);
      ASSERT_EQ(on_gpus.results, on_host.results) << test.Text();
      ASSERT_EQ(on_gpus.residuals, on_host.residuals) << test.Text();
      ASSERT_EQ(on_gpus.right_factors, on_host.right_factors) << test.Text();
      for (const Bits& result : on_gpus.results) ASSERT_EQ(result, on_gpus.results[0]);
      EXPECT_EQ(on_gpus.use.sent_bytes, on_host.use.sent_bytes) << test.Text();
      EXPECT_EQ(on_gpus.use.plain_bytes, on_host.use.plain_bytes) << test.Text();
      EXPECT_EQ(on_gpus.use.not_finite_blocks, on_host.use.not_finite_blocks) << test.Text();
      EXPECT_EQ(on_gpus.use.residual_squares, on_host.use.residual_squares) << test.Text();
      EXPECT_NEAR(on_gpus.use.sum_squares, on_host.use.sum_squares, on_host.use.sum_squares * 1e-6)
          << test.Text();
    }
  }

  std::vector<NodeMatrix> matrices_;
};

TEST_F(GpuFactorExchange, GivesTheBitsOfTheHostAmongNodes) {
  for (const std::uint32_t nodes : {2U, 3U}) {
    for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
      for (const Shape& shape : {Shape{100, 60, 4}, Shape{77, 131, 1}, Shape{300, 301, 7},
                                 Shape{9, 3001, 2}, Shape{601, 200, 32}}) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectLikeOnTheHost({.shape = shape, .nodes = nodes, .algorithm = algorithm}, 3));
      }
    }
  }
}

TEST_F(GpuFactorExchange, GivesTheBitsOfTheHostOverServers) {
  ExpectLikeOnTheHost({.shape = {300, 301, 7}, .servers = 2}, 3);
}

TEST_F(GpuFactorExchange, GivesTheBitsOfTheHostWithoutResiduals) {
  ExpectLikeOnTheHost({.nodes = 3, .has_residual = false}, 2);
}

TEST_F(GpuFactorExchange, LeavesNothingOfWhatIsNotFinite) {
  for (const int infinite_in : {2, 3}) {
    ExpectLikeOnTheHost({.nodes = 3, .infinite_in = infinite_in}, 3);
  }
}

TEST_F(GpuFactorExchange, ReportsWhatItCameTo) {
  const CodecUse use = SumsOf({.nodes = 3, .on_gpu = 3}, 2).use;
  EXPECT_GT(use.encode_ns, 0);
  EXPECT_GT(use.decode_ns, 0);
  EXPECT_GT(use.residual_squares, 0);
  EXPECT_GT(use.sum_squares, use.residual_squares);
}

// In each of the steps, of kernels and of copies.
TEST_F(GpuFactorExchange, EndsTheGroupWithTheNameOfAGpuThatFails) {
  const MatrixCase test{.on_gpu = 1};
  for (const auto& [call, calls_count] :
       {std::pair("cuLaunchKernel", 4U), std::pair("cuMemcpyAsync", 5U)}) {
    for (std::uint64_t nth = 1; nth <= calls_count; ++nth) {
      MakeMatrices(test);
      {
        Fleet fleet(OptionsOf(test));
        std::mt19937_64 random(7);
        Fill(test, 1, random);
        doubled_.fail(call, nth, CuResult::kOutOfMemory);
        for (std::uint32_t node = 0; node < 2; ++node) fleet.Post(node, TransferOf(test, node, 1));
        while (fleet.completions(0).empty() && fleet.Step()) {
        }
        ASSERT_EQ(fleet.completions(0).size(), 1U) << call << " " << nth;
        EXPECT_EQ(fleet.completions(0)[0].code, Code::kExhausted) << call << " " << nth;
        EXPECT_NE(fleet.completions(0)[0].cause.find("GPU 0: "), std::string::npos)
            << fleet.completions(0)[0].cause;
      }
      FreeMemory();
    }
  }
}

// Lest others wait on their GPU until it has gone through all rows, one after the other.
TEST_F(GpuFactorExchange, MakesTheRightFactorOfManyRowsByPartsToTheBitsOfTheHost) {
  const MatrixCase test{.shape = {2 * kRightFactorRowsMax + 1, 30, 3}, .on_gpu = 1};
  ASSERT_NO_FATAL_FAILURE(ExpectLikeOnTheHost(test, 2));
  // Residual, left factor, three parts of the right one, product.
  constexpr std::uint64_t kLast = 6;
  MakeMatrices(test);
  {
    Fleet fleet(OptionsOf(test));
    std::mt19937_64 random(7);
    Fill(test, 1, random);
    doubled_.fail("cuLaunchKernel", kLast, CuResult::kOutOfMemory);
    for (std::uint32_t node = 0; node < 2; ++node) fleet.Post(node, TransferOf(test, node, 1));
    while (fleet.completions(0).empty() && fleet.Step()) {
    }
    ASSERT_EQ(fleet.completions(0).size(), 1U);
    EXPECT_EQ(fleet.completions(0)[0].code, Code::kExhausted);
  }
  FreeMemory();
}

// Whatever a GPU is at work on then.
TEST_F(GpuFactorExchange, LeavesMemoryAloneOnceTheLaneIsGone) {
  const MatrixCase test{.shape = {300, 301, 7}, .on_gpu = 2};
  for (int steps = 0; steps < 60; steps += 3) {
    MakeMatrices(test);
    {
      Fleet fleet(OptionsOf(test));
      std::mt19937_64 random(7);
      Fill(test, 1, random);
      for (std::uint32_t node = 0; node < 2; ++node) fleet.Post(node, TransferOf(test, node, 1));
      for (int step = 0; step < steps; ++step) fleet.Step();
    }
    FreeMemory();
  }
}

// Nor does a group end before its GPUs have.
TEST_F(GpuFactorExchange, EndsWithItsGroupOnceItsGpuIsDone) {
  const MatrixCase test{.shape = {300, 301, 7}, .on_gpu = 2};
  int cancelled_count = 0;
  for (int steps = 0; steps < 30; ++steps) {
    MakeMatrices(test);
    {
      Fleet fleet(OptionsOf(test));
      std::mt19937_64 random(7);
      Fill(test, 1, random);
      for (std::uint32_t node = 0; node < 2; ++node) fleet.Post(node, TransferOf(test, node, 1));
      for (int step = 0; step < steps; ++step) fleet.Step();
      fleet.node(0).CloseGroup(1, "the job is over");
      fleet.RunToTheEnd();
      ASSERT_EQ(fleet.completions(0).size(), 1U) << steps;
      cancelled_count += fleet.completions(0)[0].code == Code::kCancelled ? 1 : 0;
    }
    FreeMemory();
  }
  EXPECT_GT(cancelled_count, 5);
}

}  // namespace
}  // namespace headrace::transport
