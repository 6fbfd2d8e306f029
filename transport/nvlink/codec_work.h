// The parameters of one launch of a codec's kernel, passed by value: CUDA allows 4 KiB of them.
// Kernels read and write whole blocks of 256 elements, the last of a launch perhaps a part of one.
//
// Shared by the kernels and their callers: plain fields, no library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/codec/block_size.h"
#include "transport/nvlink/kernel_work.h"

namespace headrace::transport {

inline constexpr std::uint32_t kBlockCount = kCodecBlock;  // elements
inline constexpr std::uint32_t kLanes = 32;                // threads of a warp, which share a block
inline constexpr std::uint32_t kCodecInputsMax = 64;
// Pieces of a residual's memory in one launch: any block fits, since each has one element at least.
inline constexpr std::uint32_t kResidualStretchesMax = 320;

struct EncodeWork {
  float* values;
  std::byte* out;       // aligned to 4 bytes, but for topk
  std::byte* residual;  // null: it adds nothing and keeps nothing
  std::uint64_t seed;   // see CodecSeed
  std::uint64_t first_block;
  std::uint32_t count;            // elements
  std::uint32_t kept;             // of each block, where the codec keeps some
  std::uint32_t stretches_count;  // 1 at least, where there is a residual
  // Elements from begins[i] on have their residuals offsets[i] bytes behind the pointer.
  std::uint32_t begins[kResidualStretchesMax];
  std::uint64_t offsets[kResidualStretchesMax];
};
static_assert(sizeof(EncodeWork) <= 4096);

struct DecodeWork {
  const std::byte* inputs[kCodecInputsMax];  // aligned to 4 bytes, but for topk
  float* out;
  std::uint64_t seed;
  std::uint64_t first_block;
  std::uint32_t inputs_count;
  std::uint32_t count;  // elements
  std::uint32_t kept;
  float divisor;  // 1: nothing is divided
  bool onto;      // the elements of `out` are the first of the sum
};
static_assert(sizeof(DecodeWork) <= 4096);

// The lossless codec's. A table is of as many blocks as are whole: where each begins, and where
// the elements behind them do.
struct LosslessEncodeWork {
  const float* values;
  std::byte* out;        // aligned to 4 bytes, as are tables
  std::uint32_t* table;  // and behind it the bytes of all
  std::uint32_t count;   // elements
  bool as_it_is;         // nothing is coded
};

struct LosslessInput {
  const std::byte* in = nullptr;         // aligned to 4 bytes
  const std::uint32_t* table = nullptr;  // null: the elements are as they are
};

struct LosslessDecodeWork {
  LosslessInput inputs[kCodecInputsMax];
  float* out;
  std::uint32_t inputs_count;
  std::uint32_t own;    // before which input the elements of `out` are added; beyond all: nowhere
  std::uint32_t count;  // elements
  float divisor;        // 1: nothing is divided
};
static_assert(sizeof(LosslessDecodeWork) <= 4096);

// A matrix and its two factors, which lie as codec/low_rank.h has them.
struct FactorWork {
  float* values;
  float* residual;  // null: it adds nothing and keeps nothing
  float* p;
  float* q;
  const float* own_q;
  std::uint64_t rows;
  std::uint64_t columns;
  std::uint32_t rank;
  float divisor;   // of the product
  bool is_finite;  // else there is no product
  // The rows of a right factor's launch, which adds them to what those before came to.
  std::uint64_t rows_begin;
  std::uint64_t rows_end;
};
static_assert(sizeof(FactorWork) <= 4096);

// What such a launch is cut into, each done by one warp: elements as they lie; some rows, or some
// columns, for some of the rank; some rows of some columns.
inline constexpr std::uint32_t kSumLanes = 8;  // threads of a sum along a row
inline constexpr std::uint32_t kRowsOfWarp = kLanes / kSumLanes;
inline constexpr std::uint32_t kRanksOfWarp = 4;
inline constexpr std::uint32_t kElementsOfWarp = 8 * kLanes;

HR_KERNEL std::uint64_t SharesOf(std::uint64_t count, std::uint32_t size) {
  return (count + size - 1) / size;
}
HR_KERNEL std::uint64_t FactorAddItems(const FactorWork& work) {
  return SharesOf(work.rows * work.columns, kElementsOfWarp);
}
HR_KERNEL std::uint64_t LeftFactorItems(const FactorWork& work) {
  return SharesOf(work.rows, kRowsOfWarp) * SharesOf(work.rank, kRanksOfWarp);
}
HR_KERNEL std::uint64_t RightFactorItems(const FactorWork& work) {
  return SharesOf(work.columns, kLanes) * SharesOf(work.rank, kRanksOfWarp);
}
HR_KERNEL std::uint64_t FactorProductItems(const FactorWork& work) {
  return SharesOf(work.rows, kRowsOfWarp) * SharesOf(work.columns, kLanes);
}

}  // namespace headrace::transport
