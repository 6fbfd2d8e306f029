// A sum that crosses as two factors of it (codec/low_rank.h): what this node computes before,
// between and after the sums of the factors, a bounded part at a time.
//
// The pieces of such a transfer are those of its factors, first of the left one, then of the right
// one, and are summed as float32 is without a codec. Pieces of the left factor are made when they
// begin. Once the last of them has ended, Step has to be called until the right factor is there,
// and once its last piece has ended, until the result is.
//
// Part of an open collective, on the lane's thread. A value; owns no memory and allocates none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/codec/low_rank.h"
#include "transport/exchange/collective_spec.h"
#include "transport/transport.h"

namespace headrace::transport {

class FactorSum {
 public:
  // One that does not exist.
  FactorSum() = default;
  // `values` and `residual` begin with the transfer's first element; no residual: null.
  FactorSum(const Transfer& transfer, const CollectiveSpec& spec, std::byte* values,
            std::byte* residual);

  bool exists() const { return phase_ != Phase::kNone; }
  bool done() const { return phase_ == Phase::kDone; }
  // Both factors, one behind the other: what is summed.
  std::byte* factors() const { return reinterpret_cast<std::byte*>(p_); }

  // Makes elements of the left factor, whole rows of it.
  void Project(std::uint64_t begin, std::uint64_t count, CodecUse& use);
  // Whether the sum of the left factor, or its use, has to be there before the right one's pieces.
  bool lacks_right_factor() const { return phase_ != Phase::kNone && phase_ < Phase::kSummed; }
  // The next part, while no piece is under way.
  void Step(CodecUse& use);

 private:
  enum class Phase : std::uint8_t {
    kNone,
    kProject,
    kOrthogonalize,  // what all columns of the left factor have in common is added up
    kRestrict,       // the right factor is made, row by row
    kSummed,         // and summed by all
    kExpand,         // the result is made of both
    kDone,
  };

  // How many rows of the matrix, from the next one on, are worked on in one go.
  std::uint64_t RowsOfNextPart() const;
  MatrixRows RowsAt(std::uint64_t row, std::uint64_t rows) const;
  float* LeftOf(std::uint64_t row) const { return p_ + row * rank_; }
  void Orthogonalize();
  void Restrict();
  void Expand(CodecUse& use);
  void WriteRows(const MatrixRows& rows, const float* p, CodecUse& use) const;
  std::uint64_t RightCount() const { return columns_ * rank_; }

  float* values_ = nullptr;
  float* residual_ = nullptr;
  float* p_ = nullptr;
  float* q_ = nullptr;       // from one sum of a matrix to the next
  float* own_q_ = nullptr;   // this node's part of it
  float* kept_q_ = nullptr;  // where it is kept, too; null: nowhere
  std::uint64_t rows_ = 0;
  std::uint64_t columns_ = 0;
  std::uint64_t next_row_ = 0;
  std::uint32_t rank_ = 0;
  std::uint32_t divisor_ = 1;
  Phase phase_ = Phase::kNone;
  bool finite_ = true;
  OrthonormalBasis basis_;
};

}  // namespace headrace::transport
