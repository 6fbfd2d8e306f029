// A gradient as a matrix: which of them may cross between nodes as two factors (powersgd).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ipc/base/codec_cost.h"
#include "ipc/base/codecs.h"

namespace headrace {

// A row is worked on in one go, and others wait for it, as they do where the right factor is looked
// at as a whole.
inline constexpr std::uint64_t kMatrixColumnsMax = std::uint64_t{256} << 10;
inline constexpr std::uint64_t kRightFactorCountMax = 4 * kMatrixColumnsMax;

// The elements of both factors of a matrix of `count` elements in so many rows: the codec's rank of
// each row, and of each column.
constexpr std::uint64_t FactorsCount(const Codec& codec, std::uint64_t rows, std::uint64_t count) {
  return codec.parameter * (rows + count / rows);
}

// Whether `count` elements in so many rows, 0 where they are no matrix, may cross as two factors.
// These have less than half of the elements; matrices that are small cross as they are.
constexpr bool HasFactors(const Codec& codec, std::uint64_t rows, std::uint64_t count) {
  if (codec.kind != Codec::kPowerSgd || rows == 0 || rows > count || count % rows != 0) {
    return false;
  }
  const std::uint64_t columns = count / rows;
  return columns <= kMatrixColumnsMax && codec.parameter * columns <= kRightFactorCountMax &&
         count >= kEncodedBytesMin / sizeof(float) && FactorsCount(codec, rows, count) < count / 2;
}

// The elements of memory that a node needs for the sums of such a matrix: both factors, and the
// second one of the node's own.
constexpr std::uint64_t FactorMemoryCount(const Codec& codec, std::uint64_t rows,
                                          std::uint64_t count) {
  return FactorsCount(codec, rows, count) + codec.parameter * (count / rows);
}

// Over which of the rails between nodes a gradient's factors go, by how many gradients before it in
// forward order are matrices.
constexpr std::size_t RailOfMatrix(std::size_t number, std::size_t rails_count) {
  return number % rails_count;
}

// The elements of room for a matrix's right factor, where its codec has at most that rank. A matrix
// that has factors has more than twice as many rows as their rank.
constexpr std::uint64_t RightFactorRoom(std::uint64_t rank_max, std::uint64_t rows,
                                        std::uint64_t count) {
  return rows == 0 ? 0 : std::min(rank_max, rows / 2) * (count / rows);
}

}  // namespace headrace
