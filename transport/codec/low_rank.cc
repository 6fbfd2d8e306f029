// The kernels are compiled once for every SIMD target.
#include "transport/codec/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ipc/base/check.h"
#include "transport/codec/seed.h"
#include "transport/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transport/codec/low_rank.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which re-includes this file.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transport::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using VF = hn::Vec<F>;
// Sums along a row are of so many lanes on every target, and added up in one order.
inline constexpr std::size_t kSumLanes = 8;
using FSum = hn::CappedTag<float, kSumLanes>;
using VFSum = hn::Vec<FSum>;
inline constexpr std::size_t kSumVectors = kSumLanes / hn::MaxLanes(FSum());
// Columns that are worked on together, so that their factors stay in the first cache.
inline constexpr std::size_t kColumnsTogether = 512;
// Rows that share what is loaded of the factors.
inline constexpr std::size_t kRowsTogether = 4;

// Of `kRows` rows, in memory that is read whole.
template <std::size_t kRows>
struct RowSums {
  alignas(64) float of_columns[kRows][kColumnsTogether];  // the matrix, zeros behind its end
  alignas(64) float lanes[kRankMax][kRows][kSumLanes];    // the products so far
};

template <std::size_t kRows>
HWY_INLINE void LoadColumns(const MatrixRows& matrix, std::uint64_t begin, std::size_t count,
                            RowSums<kRows>& sums) {
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::uint64_t offset = row * matrix.columns + begin;
    const float* const values = matrix.values + offset;
    float* const out = sums.of_columns[row];
    std::size_t i = 0;
    if (matrix.residual == nullptr) {
      for (; i + hn::Lanes(F()) <= count; i += hn::Lanes(F())) {
        hn::StoreU(hn::LoadU(F(), values + i), F(), out + i);
      }
      for (; i < count; ++i) out[i] = values[i];
    } else {
      const float* const residual = matrix.residual + offset;
      for (; i + hn::Lanes(F()) <= count; i += hn::Lanes(F())) {
        hn::StoreU(hn::Add(hn::LoadU(F(), values + i), hn::LoadU(F(), residual + i)), F(), out + i);
      }
      for (; i < count; ++i) out[i] = values[i] + residual[i];
    }
    for (; i % kSumLanes != 0; ++i) out[i] = 0;
  }
}

// Adds the products of `count` columns, whole lanes of them, with a column of Q.
template <std::size_t kRows>
HWY_INLINE void AddProducts(const float* columns, const float* q, std::size_t count, float* lanes) {
  const FSum d;
  VFSum sums[kRows][kSumVectors];
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t v = 0; v < kSumVectors; ++v) {
      sums[row][v] = hn::LoadU(d, lanes + row * kSumLanes + v * hn::MaxLanes(d));
    }
  }
  for (std::size_t i = 0; i < count; i += kSumLanes) {
    for (std::size_t v = 0; v < kSumVectors; ++v) {
      const std::size_t at = i + v * hn::MaxLanes(d);
      const VFSum factor = hn::LoadU(d, q + at);
      for (std::size_t row = 0; row < kRows; ++row) {
        const VFSum value = hn::LoadU(d, columns + row * kColumnsTogether + at);
        sums[row][v] = hn::Add(sums[row][v], hn::Mul(value, factor));
      }
    }
  }
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t v = 0; v < kSumVectors; ++v) {
      hn::StoreU(sums[row][v], d, lanes + row * kSumLanes + v * hn::MaxLanes(d));
    }
  }
}

HWY_INLINE float AddUp(const float* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

template <std::size_t kRows>
void MultiplySome(const MatrixRows& matrix, const float* q, float* p) {
  RowSums<kRows> sums;
  for (std::size_t k = 0; k < matrix.rank; ++k) {
    for (auto& lanes : sums.lanes[k]) std::fill(std::begin(lanes), std::end(lanes), 0.0F);
  }
  for (std::uint64_t begin = 0; begin < matrix.columns; begin += kColumnsTogether) {
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(kColumnsTogether, matrix.columns - begin));
    LoadColumns(matrix, begin, count, sums);
    const std::size_t whole = count / kSumLanes * kSumLanes;
    for (std::size_t k = 0; k < matrix.rank; ++k) {
      const float* const column = q + k * matrix.columns + begin;
      AddProducts<kRows>(sums.of_columns[0], column, whole, sums.lanes[k][0]);
      if (whole == count) continue;
      float last[kSumLanes] = {};
      std::copy(column + whole, column + count, last);
      AddProducts<kRows>(sums.of_columns[0] + whole, last, kSumLanes, sums.lanes[k][0]);
    }
  }
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t k = 0; k < matrix.rank; ++k) {
      p[row * matrix.rank + k] = AddUp(sums.lanes[k][row]);
    }
  }
}

// Calls Run<rows> for all rows, several at a time while there are so many.
template <template <std::size_t> class Visit, class... More>
void ForRows(const MatrixRows& matrix, More... more) {
  std::uint64_t row = 0;
  const auto from = [&matrix](std::uint64_t begin) {
    MatrixRows rows = matrix;
    rows.values += begin * matrix.columns;
    if (rows.residual != nullptr) rows.residual += begin * matrix.columns;
    return rows;
  };
  for (; row + kRowsTogether <= matrix.rows; row += kRowsTogether) {
    Visit<kRowsTogether>::Run(from(row), row, more...);
  }
  for (; row < matrix.rows; ++row) Visit<1>::Run(from(row), row, more...);
}

template <std::size_t kRows>
struct MultiplyVisit {
  static void Run(const MatrixRows& matrix, std::uint64_t row, const float* q, float* p) {
    MultiplySome<kRows>(matrix, q, p + row * matrix.rank);
  }
};

// One element of each of the rows, or as many as a vector has.
struct Single {
  using Value = float;
  static constexpr std::size_t Lanes() { return 1; }
  static float Load(const float* from) { return *from; }
  static void Store(float value, float* to) { *to = value; }
  static float Of(float value) { return value; }
  static float Add(float a, float b) { return a + b; }
  static float Sub(float a, float b) { return a - b; }
  static float Mul(float a, float b) { return a * b; }
  static float Div(float a, float b) { return a / b; }
  static float FiniteOrZero(float value) { return std::isfinite(value) ? value : 0; }
  static float PlainNaN(float value) {
    return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
  }
};
struct Several {
  using Value = VF;
  static HWY_INLINE std::size_t Lanes() { return hn::Lanes(F()); }
  static HWY_INLINE VF Load(const float* from) { return hn::LoadU(F(), from); }
  static HWY_INLINE void Store(VF value, float* to) { hn::StoreU(value, F(), to); }
  static HWY_INLINE VF Of(float value) { return hn::Set(F(), value); }
  static HWY_INLINE VF Add(VF a, VF b) { return hn::Add(a, b); }
  static HWY_INLINE VF Sub(VF a, VF b) { return hn::Sub(a, b); }
  static HWY_INLINE VF Mul(VF a, VF b) { return hn::Mul(a, b); }
  static HWY_INLINE VF Div(VF a, VF b) { return hn::Div(a, b); }
  static HWY_INLINE VF FiniteOrZero(VF value) {
    return hn::IfThenElseZero(hn::IsFinite(value), value);
  }
  static HWY_INLINE VF PlainNaN(VF value) {
    const VF plain = hn::Set(F(), std::numeric_limits<float>::quiet_NaN());
    return hn::IfThenElse(hn::IsNaN(value), plain, value);
  }
};

template <class Lane>
HWY_INLINE typename Lane::Value LoadElement(const MatrixRows& matrix, std::uint64_t at) {
  const auto value = Lane::Load(matrix.values + at);
  if (matrix.residual == nullptr) return value;
  return Lane::Add(value, Lane::Load(matrix.residual + at));
}

// Columns [begin, end) of some rows.
struct Columns {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

template <std::size_t kRows, class Lane>
HWY_INLINE void AddColumn(const MatrixRows& matrix, const float* p, float* q, std::uint64_t i) {
  typename Lane::Value values[kRows];
  for (std::size_t row = 0; row < kRows; ++row) {
    values[row] = LoadElement<Lane>(matrix, row * matrix.columns + i);
  }
  for (std::size_t k = 0; k < matrix.rank; ++k) {
    float* const out = q + k * matrix.columns + i;
    auto sum = Lane::Load(out);
    for (std::size_t row = 0; row < kRows; ++row) {
      sum = Lane::Add(sum, Lane::Mul(values[row], Lane::Of(p[row * matrix.rank + k])));
    }
    Lane::Store(sum, out);
  }
}

template <std::size_t kRows>
struct AddVisit {
  static void Run(const MatrixRows& matrix, std::uint64_t row, Columns columns, const float* p,
                  float* q) {
    const float* const own = p + row * matrix.rank;
    std::uint64_t i = columns.begin;
    for (; i + Several::Lanes() <= columns.end; i += Several::Lanes()) {
      AddColumn<kRows, Several>(matrix, own, q, i);
    }
    for (; i < columns.end; ++i) AddColumn<kRows, Single>(matrix, own, q, i);
  }
};

template <std::size_t kRows, class Lane>
HWY_INLINE void WriteColumn(const MatrixRows& matrix, const float* p, const float* q,
                            const float* own_q, float divisor, std::uint64_t i) {
  typename Lane::Value sums[kRows];
  typename Lane::Value own_sums[kRows];
  for (std::size_t row = 0; row < kRows; ++row) {
    sums[row] = Lane::Of(0);
    own_sums[row] = Lane::Of(0);
  }
  for (std::size_t k = 0; k < matrix.rank; ++k) {
    const auto of_all = Lane::Load(q + k * matrix.columns + i);
    const auto of_own = Lane::Load(own_q + k * matrix.columns + i);
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto factor = Lane::Of(p[row * matrix.rank + k]);
      sums[row] = Lane::Add(sums[row], Lane::Mul(factor, of_all));
      own_sums[row] = Lane::Add(own_sums[row], Lane::Mul(factor, of_own));
    }
  }
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::uint64_t at = row * matrix.columns + i;
    if (matrix.residual != nullptr) {
      const auto left_out = Lane::Sub(LoadElement<Lane>(matrix, at), own_sums[row]);
      Lane::Store(Lane::FiniteOrZero(left_out), matrix.residual + at);
    }
    // All NaN are one: processors differ in that which two infinities give.
    Lane::Store(Lane::PlainNaN(Lane::Div(sums[row], Lane::Of(divisor))), matrix.values + at);
  }
}

template <std::size_t kRows>
struct WriteVisit {
  static void Run(const MatrixRows& matrix, std::uint64_t row, Columns columns, const float* p,
                  const float* q, const float* own_q, float divisor) {
    const float* const own = p + row * matrix.rank;
    std::uint64_t i = columns.begin;
    for (; i + Several::Lanes() <= columns.end; i += Several::Lanes()) {
      WriteColumn<kRows, Several>(matrix, own, q, own_q, divisor, i);
    }
    for (; i < columns.end; ++i) {
      WriteColumn<kRows, Single>(matrix, own, q, own_q, divisor, i);
    }
  }
};

template <class Visit>
HWY_INLINE void ForColumns(const MatrixRows& matrix, Visit visit) {
  for (std::uint64_t begin = 0; begin < matrix.columns; begin += kColumnsTogether) {
    visit(Columns{begin, std::min(begin + kColumnsTogether, matrix.columns)});
  }
}

void MultiplyHere(const MatrixRows& matrix, const float* q, float* p) {
  ForRows<MultiplyVisit>(matrix, q, p);
}

void AddHere(const MatrixRows& matrix, const float* p, float* q) {
  ForColumns(matrix, [&](Columns columns) { ForRows<AddVisit>(matrix, columns, p, q); });
}

void WriteHere(const MatrixRows& matrix, const float* p, const float* q, const float* own_q,
               float divisor) {
  ForColumns(matrix,
             [&](Columns columns) { ForRows<WriteVisit>(matrix, columns, p, q, own_q, divisor); });
}

}  // namespace headrace::transport::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transport {

HWY_EXPORT(MultiplyHere);
HWY_EXPORT(AddHere);
HWY_EXPORT(WriteHere);

namespace {

// A column that keeps less of its length than this, squared, is in those before it but for the
// rounding of float32.
constexpr double kDependent = 1e-10;

void CheckRows(const MatrixRows& matrix) {
  HR_CHECK(matrix.rank >= 1 && matrix.rank <= kRankMax && matrix.values != nullptr, matrix.rank);
}

// In [-1, 1), evenly.
float ByChance(std::uint64_t seed, std::uint64_t number) {
  return static_cast<float>(MixedSeed(seed, number) >> 40U) * 0x1p-23F - 1;
}

}  // namespace

void PrepareRightFactor(float* q, std::uint64_t columns, std::uint32_t rank, std::uint64_t seed) {
  for (std::uint32_t k = 0; k < rank; ++k) {
    float* const column = q + k * columns;
    float most = 0;
    for (std::uint64_t i = 0; i < columns; ++i) most = std::max(most, std::abs(column[i]));
    if (most == 0 || !AllFinite(column, columns)) {
      for (std::uint64_t i = 0; i < columns; ++i) column[i] = ByChance(MixedSeed(seed, k), i);
      continue;
    }
    int exponent = 0;
    static_cast<void>(std::frexp(most, &exponent));
    const double scale = std::ldexp(1.0, -exponent);
    for (std::uint64_t i = 0; i < columns; ++i) {
      column[i] = static_cast<float>(double{column[i]} * scale);
    }
  }
}

void MultiplyByRightFactor(const MatrixRows& matrix, const float* q, float* p) {
  CheckRows(matrix);
  HWY_DYNAMIC_DISPATCH(MultiplyHere)(matrix, q, p);
}

void AddToRightFactor(const MatrixRows& matrix, const float* p, float* q) {
  CheckRows(matrix);
  HWY_DYNAMIC_DISPATCH(AddHere)(matrix, p, q);
}

void WriteProduct(const MatrixRows& matrix, const float* p, const float* q, const float* own_q,
                  std::uint32_t divisor) {
  CheckRows(matrix);
  HR_CHECK(divisor >= 1, divisor);
  HWY_DYNAMIC_DISPATCH(WriteHere)(matrix, p, q, own_q, static_cast<float>(divisor));
}

void WriteNotFinite(const MatrixRows& matrix) {
  CheckRows(matrix);
  const std::uint64_t count = matrix.rows * matrix.columns;
  std::fill_n(matrix.values, count, std::numeric_limits<float>::quiet_NaN());
  if (matrix.residual != nullptr) std::fill_n(matrix.residual, count, 0.0F);
}

bool AllFinite(const float* values, std::uint64_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

void OrthonormalBasis::Add(const float* p, std::uint64_t rows) {
  for (std::uint64_t row = 0; row < rows; ++row) {
    const float* const values = p + row * rank_;
    for (std::uint32_t i = 0; i < rank_; ++i) {
      for (std::uint32_t j = 0; j <= i; ++j) at(i, j) += double{values[i]} * double{values[j]};
    }
  }
}

bool OrthonormalBasis::Finish() {
  for (std::uint32_t i = 0; i < rank_; ++i) {
    if (!std::isfinite(at(i, i))) return false;
  }
  for (std::uint32_t i = 0; i < rank_; ++i) {
    const double whole = at(i, i);
    for (std::uint32_t j = 0; j <= i; ++j) {
      double left = at(i, j);
      for (std::uint32_t k = 0; k < j; ++k) left -= at(i, k) * at(j, k);
      if (j < i) {
        at(i, j) = at(j, j) == 0 ? 0 : left / at(j, j);
      } else {
        at(i, i) = left > kDependent * whole ? std::sqrt(left) : 0;
      }
    }
  }
  return true;
}

void OrthonormalBasis::Replace(float* p, std::uint64_t rows) const {
  std::array<double, kRankMax> values{};
  for (std::uint64_t row = 0; row < rows; ++row) {
    float* const out = p + row * rank_;
    for (std::uint32_t i = 0; i < rank_; ++i) {
      double left = double{out[i]};
      for (std::uint32_t j = 0; j < i; ++j) left -= at(i, j) * values[j];
      values[i] = at(i, i) == 0 ? 0 : left / at(i, i);
    }
    for (std::uint32_t i = 0; i < rank_; ++i) out[i] = static_cast<float>(values[i]);
  }
}

}  // namespace headrace::transport
#endif
