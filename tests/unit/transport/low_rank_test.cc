// Sums of matrices by two factors: what each step gives, and the same bits on every SIMD target and
// wherever rows are taken apart.
#include "transport/codec/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/unit/transport/simd_target_test.h"

namespace headrace::transport {
namespace {

using Floats = std::vector<float>;

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

struct Shape {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint32_t rank = 0;

  std::uint64_t count() const { return rows * columns; }
};

// Of odd sizes, and beyond what is worked on together.
constexpr Shape kShapes[] = {{1, 1, 1},   {1, 17, 3},  {4, 8, 1},    {5, 7, 2},
                             {13, 31, 4}, {64, 64, 4}, {7, 1029, 5}, {130, 515, kRankMax}};

Floats Normal(std::uint64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Matrix {
  Matrix(const Shape& of, std::uint64_t seed)
      : shape(of), values(Normal(of.count(), seed)), residual(Normal(of.count(), seed + 1)) {}

  double at(std::uint64_t row, std::uint64_t column) const {
    const std::uint64_t place = row * shape.columns + column;
    return double{values[place] + residual[place]};
  }
  MatrixRows Rows(std::uint64_t first, std::uint64_t count) {
    return {.values = values.data() + first * shape.columns,
            .residual = residual.data() + first * shape.columns,
            .rows = count,
            .columns = shape.columns,
            .rank = shape.rank};
  }
  MatrixRows All() { return Rows(0, shape.rows); }

  Shape shape;
  Floats values;
  Floats residual;
};

// All that the kernels make of a matrix, with rows taken `together` at a time.
struct Outcome {
  Floats p;
  Floats own_q;
  Floats values;
  Floats residual;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome OutcomeOf(const Shape& shape, std::uint64_t together) {
  Matrix matrix(shape, 5);
  const Floats right = Normal(shape.columns * shape.rank, 8);
  const Floats sum = Normal(shape.columns * shape.rank, 9);
  Outcome outcome;
  outcome.p.resize(shape.rows * shape.rank);
  outcome.own_q.resize(shape.columns * shape.rank);
  const auto for_rows = [&](auto visit) {
    for (std::uint64_t row = 0; row < shape.rows; row += together) {
      visit(matrix.Rows(row, std::min(together, shape.rows - row)),
            outcome.p.data() + row * shape.rank);
    }
  };
  for_rows([&](const MatrixRows& rows, float* p) { MultiplyByRightFactor(rows, right.data(), p); });
  for_rows([&](const MatrixRows& rows, const float* p) {
    AddToRightFactor(rows, p, outcome.own_q.data());
  });
  for_rows([&](const MatrixRows& rows, const float* p) {
    WriteProduct(rows, p, sum.data(), outcome.own_q.data(), 3);
  });
  outcome.values = matrix.values;
  outcome.residual = matrix.residual;
  return outcome;
}

class LowRankOn : public SimdTargetTest {};

TEST_P(LowRankOn, GivesTheBitsOfEveryOtherTargetHoweverRowsAreTaken) {
  std::vector<Outcome> here;
  for (const Shape& shape : kShapes) {
    here.push_back(OutcomeOf(shape, shape.rows));
    EXPECT_EQ(OutcomeOf(shape, 1), here.back()) << shape.rows << " x " << shape.columns;
    EXPECT_EQ(OutcomeOf(shape, 6), here.back()) << shape.rows << " x " << shape.columns;
  }
  Choose(hwy::SupportedAndGeneratedTargets().front());
  for (std::size_t i = 0; i < std::size(kShapes); ++i) {
    EXPECT_EQ(OutcomeOf(kShapes[i], kShapes[i].rows), here[i])
        << kShapes[i].rows << " x " << kShapes[i].columns;
  }
}

TEST_P(LowRankOn, MultipliesAsDoublesDo) {
  for (const Shape& shape : kShapes) {
    Matrix matrix(shape, 1);
    const Matrix before = matrix;
    const Floats right = Normal(shape.columns * shape.rank, 3);
    Floats p(shape.rows * shape.rank);
    MultiplyByRightFactor(matrix.All(), right.data(), p.data());
    Floats q(shape.columns * shape.rank, 1);
    AddToRightFactor(matrix.All(), p.data(), q.data());
    EXPECT_EQ(matrix.values, before.values);
    EXPECT_EQ(matrix.residual, before.residual);
    const double rounding = 1e-5 * std::sqrt(static_cast<double>(shape.columns));
    for (std::uint64_t i = 0; i < shape.rows; ++i) {
      for (std::uint32_t k = 0; k < shape.rank; ++k) {
        double sum = 0;
        for (std::uint64_t j = 0; j < shape.columns; ++j) {
          sum += matrix.at(i, j) * double{right[k * shape.columns + j]};
        }
        ASSERT_NEAR(p[i * shape.rank + k], sum, rounding) << i << " " << k;
      }
    }
    for (std::uint64_t j = 0; j < shape.columns; ++j) {
      for (std::uint32_t k = 0; k < shape.rank; ++k) {
        double sum = 1;
        double size = 1;
        for (std::uint64_t i = 0; i < shape.rows; ++i) {
          sum += matrix.at(i, j) * double{p[i * shape.rank + k]};
          size += std::abs(matrix.at(i, j) * double{p[i * shape.rank + k]});
        }
        ASSERT_NEAR(q[k * shape.columns + j], sum, 1e-5 * size) << j << " " << k;
      }
    }
  }
}

TEST_P(LowRankOn, WritesTheProductAndKeepsTheRest) {
  for (const Shape& shape : kShapes) {
    Matrix matrix(shape, 1);
    const Matrix before = matrix;
    const Floats p = Normal(shape.rows * shape.rank, 3);
    const Floats q = Normal(shape.columns * shape.rank, 4);
    const Floats own_q = Normal(shape.columns * shape.rank, 5);
    WriteProduct(matrix.All(), p.data(), q.data(), own_q.data(), 4);
    for (std::uint64_t i = 0; i < shape.rows; ++i) {
      for (std::uint64_t j = 0; j < shape.columns; ++j) {
        double sum = 0;
        double own = 0;
        for (std::uint32_t k = 0; k < shape.rank; ++k) {
          sum += double{p[i * shape.rank + k]} * double{q[k * shape.columns + j]};
          own += double{p[i * shape.rank + k]} * double{own_q[k * shape.columns + j]};
        }
        const std::uint64_t place = i * shape.columns + j;
        ASSERT_NEAR(matrix.values[place], sum / 4, 1e-4) << i << " " << j;
        ASSERT_NEAR(matrix.residual[place], before.at(i, j) - own, 1e-4) << i << " " << j;
      }
    }
  }
}

TEST_P(LowRankOn, KeepsNothingThatIsNotFinite) {
  const Shape shape{5, 19, 2};
  Matrix matrix(shape, 1);
  matrix.values[20] = kInfinite;
  const Floats p(shape.rows * shape.rank, 1);
  const Floats q(shape.columns * shape.rank, 1);
  WriteProduct(matrix.All(), p.data(), q.data(), q.data(), 1);
  EXPECT_EQ(matrix.residual[20], 0);
  EXPECT_TRUE(AllFinite(matrix.residual.data(), matrix.residual.size()));
  WriteNotFinite(matrix.All());
  EXPECT_TRUE(std::ranges::all_of(matrix.values, [](float each) { return std::isnan(each); }));
  EXPECT_TRUE(std::ranges::all_of(matrix.residual, [](float each) { return each == 0; }));
}

TEST_P(LowRankOn, NeedsNoResidual) {
  const Shape shape{9, 41, 3};
  Matrix matrix(shape, 1);
  Matrix without = matrix;
  std::fill(matrix.residual.begin(), matrix.residual.end(), 0.0F);
  const Floats right = Normal(shape.columns * shape.rank, 3);
  Floats p(shape.rows * shape.rank);
  Floats p_without(p.size());
  MatrixRows rows = without.All();
  rows.residual = nullptr;
  MultiplyByRightFactor(matrix.All(), right.data(), p.data());
  MultiplyByRightFactor(rows, right.data(), p_without.data());
  EXPECT_EQ(p, p_without);
  WriteProduct(matrix.All(), p.data(), right.data(), right.data(), 2);
  WriteProduct(rows, p.data(), right.data(), right.data(), 2);
  EXPECT_EQ(matrix.values, without.values);
}

INSTANTIATE_TEST_SUITE_P(Target, LowRankOn, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         SimdTargetOf);

double Product(const Floats& p, std::uint32_t rank, std::uint32_t one, std::uint32_t other) {
  double sum = 0;
  for (std::size_t row = 0; row < p.size() / rank; ++row) {
    sum += double{p[row * rank + one]} * double{p[row * rank + other]};
  }
  return sum;
}

TEST(LowRank, MakesColumnsOrthonormal) {
  for (const std::uint32_t rank : {1U, 2U, 4U, 32U}) {
    Floats p = Normal(std::uint64_t{200} * rank, rank);
    // Sizes far apart do no harm.
    for (std::size_t i = 0; i < p.size(); ++i) p[i] *= std::exp2(static_cast<float>(i % rank) - 9);
    OrthonormalBasis basis(rank);
    basis.Add(p.data(), 150);
    basis.Add(p.data() + std::size_t{150} * rank, 50);
    ASSERT_TRUE(basis.Finish());
    basis.Replace(p.data(), 200);
    for (std::uint32_t one = 0; one < rank; ++one) {
      for (std::uint32_t other = 0; other <= one; ++other) {
        ASSERT_NEAR(Product(p, rank, one, other), one == other ? 1 : 0, 1e-5) << one << other;
      }
    }
  }
}

TEST(LowRank, MakesZerosOfColumnsThatAddNothing) {
  constexpr std::uint32_t kRank = 3;
  Floats p = Normal(std::uint64_t{90} * kRank, 1);
  for (std::size_t row = 0; row < 90; ++row) {
    p[row * kRank + 1] = -3 * p[row * kRank];
    p[row * kRank + 2] = 0;
  }
  OrthonormalBasis basis(kRank);
  basis.Add(p.data(), 90);
  ASSERT_TRUE(basis.Finish());
  basis.Replace(p.data(), 90);
  EXPECT_NEAR(Product(p, kRank, 0, 0), 1, 1e-6);
  EXPECT_EQ(Product(p, kRank, 1, 1), 0);
  EXPECT_EQ(Product(p, kRank, 2, 2), 0);
}

TEST(LowRank, TellsWhatIsNotFinite) {
  for (const float wrong : {kNoNumber, kInfinite, -kInfinite}) {
    Floats p = Normal(20, 1);
    p[13] = wrong;
    OrthonormalBasis basis(2);
    basis.Add(p.data(), 10);
    EXPECT_FALSE(basis.Finish());
  }
  Floats largest(20, std::numeric_limits<float>::max());
  OrthonormalBasis basis(2);
  basis.Add(largest.data(), 10);
  EXPECT_TRUE(basis.Finish());
}

TEST(LowRank, BeginsWithChanceWhereThereIsNothing) {
  Floats zeros(30);
  PrepareRightFactor(zeros.data(), 10, 3, 7);
  Floats again(30);
  PrepareRightFactor(again.data(), 10, 3, 7);
  EXPECT_EQ(zeros, again);
  EXPECT_TRUE(std::ranges::all_of(zeros, [](float each) { return std::abs(each) <= 1; }));
  EXPECT_FALSE(std::equal(zeros.begin(), zeros.begin() + 10, zeros.begin() + 10));
  Floats other(30);
  PrepareRightFactor(other.data(), 10, 3, 8);
  EXPECT_NE(zeros, other);
  Floats wrong(30, kNoNumber);
  PrepareRightFactor(wrong.data(), 10, 3, 7);
  EXPECT_EQ(wrong, zeros);
}

TEST(LowRank, ScalesByPowersOfTwo) {
  Floats q = {3e-40F, 1e-41F, 0, 3e38F, -1e30F, 0.25F};
  const Floats before = q;
  PrepareRightFactor(q.data(), 3, 2, 1);
  for (std::size_t column = 0; column < 2; ++column) {
    const float* const values = q.data() + column * 3;
    const float most = std::max({std::abs(values[0]), std::abs(values[1]), std::abs(values[2])});
    EXPECT_GE(most, 0.5F);
    EXPECT_LT(most, 1.0F);
  }
  EXPECT_EQ(q[0] / q[1], before[0] / before[1]);
  EXPECT_EQ(q[2], 0);
}

}  // namespace
}  // namespace headrace::transport
