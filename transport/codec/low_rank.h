// Sums of matrices by two factors of low rank, each of which nodes can sum as it is: PowerSGD
// (Vogels, Karimireddy and Jaggi, NeurIPS 2019).
//
// A node has the matrix M, what it was given plus its residual. With a right factor Q that is the
// same on all nodes, P is the sum of all nodes' M Q, and its columns are made orthonormal. Then Q
// becomes the sum of all nodes' M^T P, and every node takes P Q^T for the sum. What a node keeps is
// what was left out of its own part of it: M less P (M^T P)^T. Those parts add up to P Q^T, so over
// many iterations nothing is lost but the last residuals.
//
// P lies row by row, `rank` elements each; Q column by column, `columns` elements each. Results are
// the same bits on all SIMD targets, and wherever rows are taken apart.
//
// Stateless, but for OrthonormalBasis: any thread, any number at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/base/codecs.h"

namespace headrace::transport {

// Some rows of a matrix. A null `residual` adds nothing and keeps nothing.
struct MatrixRows {
  float* values = nullptr;
  float* residual = nullptr;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint32_t rank = 0;
};

// Makes Q fit to begin with: what is too small or too large for products with it is scaled by a
// power of two, column by column. A column of zeros, which has no direction, gets one by chance:
// the same wherever `seed` is.
void PrepareRightFactor(float* q, std::uint64_t columns, std::uint32_t rank, std::uint64_t seed);

// P = M Q, of these rows.
void MultiplyByRightFactor(const MatrixRows& matrix, const float* q, float* p);

// Q += M^T P, of these rows.
void AddToRightFactor(const MatrixRows& matrix, const float* p, float* q);

// Writes P Q^T, divided by `divisor`, to the values, and M less P own_q^T to the residual.
void WriteProduct(const MatrixRows& matrix, const float* p, const float* q, const float* own_q,
                  std::uint32_t divisor);
// Where something was not finite: the values are NaN, the residual is 0.
void WriteNotFinite(const MatrixRows& matrix);

bool AllFinite(const float* values, std::uint64_t count);

// Makes the columns of P orthonormal, in double, as Gram and Schmidt have it: from the products of
// all columns follows what each of them loses to those before it. What is in the others but for
// rounding becomes zeros.
class OrthonormalBasis {
 public:
  explicit OrthonormalBasis(std::uint32_t rank = 1) : rank_(rank) {}

  // First all rows of P, in their order; then Finish, which returns whether all of them are finite;
  // then each row can be replaced.
  void Add(const float* p, std::uint64_t rows);
  [[nodiscard]] bool Finish();
  void Replace(float* p, std::uint64_t rows) const;

 private:
  double& at(std::uint32_t row, std::uint32_t column) { return matrix_[row * kRankMax + column]; }
  double at(std::uint32_t row, std::uint32_t column) const {
    return matrix_[row * kRankMax + column];
  }

  std::uint32_t rank_;
  // The lower half: products of columns, and after Finish the factor of Cholesky. A diagonal of 0:
  // the column becomes zeros.
  std::array<double, std::size_t{kRankMax} * kRankMax> matrix_{};
};

}  // namespace headrace::transport
