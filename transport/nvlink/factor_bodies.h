// The kernels of sums that cross as two factors: what one warp does of a launch, to the bits of
// codec/low_rank.h, whose orders of addition these are. See codec_bodies.h.
//
// A sum along a row is of eight lanes, which are added up in one order; one down a column goes row
// by row. So the threads that a product has are eight for each row, or one for each column, for
// every four of the rank.
#pragma once

#include "transport/nvlink/codec_formats.h"

namespace headrace::transport::kernels {

// Memory beside a matrix's end is none of it: who has nothing to do there does what is done before.
HR_KERNEL std::uint64_t Inside(std::uint64_t at, std::uint64_t count) {
  return at < count ? at : count - 1;
}

static_assert(kRanksOfWarp == 4 && kRowsOfWarp == 4);
struct Four {
  float v[4];
};
using FourEach = PerLane<Four>;

// What lane `lane ^ mask` has, added.
HR_KERNEL void AddOthers(FourEach& sums, std::uint32_t mask) {
  HR_UNROLL for (std::uint32_t k = 0; k < kRanksOfWarp; ++k) {
#ifdef __CUDA_ARCH__
    sums.own.v[k] =
        Plus(sums.own.v[k], __shfl_xor_sync(~0U, sums.own.v[k], static_cast<int>(mask)));
#else
    float before[kLanes];
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) before[lane] = sums[lane].v[k];
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      sums[lane].v[k] = Plus(before[lane], before[lane ^ mask]);
    }
#endif
  }
}

// Adds what was left out before to the elements, once for all that is made of them.
HR_KERNEL void FactorAddBody(const FactorWork& work, std::uint64_t warp, std::uint64_t warps) {
  const std::uint64_t count = work.rows * work.columns;
  HR_NO_UNROLL for (std::uint64_t item = warp; item < FactorAddItems(work); item += warps) {
    EachLane([&](std::uint32_t lane) {
      HR_UNROLL for (std::uint32_t i = 0; i < kElementsOfWarp / kLanes; ++i) {
        const std::uint64_t at = item * kElementsOfWarp + i * kLanes + lane;
        if (at < count) work.values[at] = Plus(work.values[at], work.residual[at]);
      }
    });
  }
}

// P = M Q.
HR_KERNEL void LeftFactorBody(const FactorWork& work, std::uint64_t warp, std::uint64_t warps) {
  [[maybe_unused]] constexpr std::uint32_t kAtATime = 8;
  const std::uint64_t tiles = SharesOf(work.rank, kRanksOfWarp);
  HR_NO_UNROLL for (std::uint64_t item = warp; item < LeftFactorItems(work); item += warps) {
    const std::uint64_t first_row = item / tiles * kRowsOfWarp;
    const std::uint64_t first = item % tiles * kRanksOfWarp;
    FourEach sums;
    EachLane([&](std::uint32_t lane) {
      const std::uint64_t row = Inside(first_row + lane / kSumLanes, work.rows);
      const float* const values = work.values + row * work.columns;
      const float* columns[kRanksOfWarp];
      HR_UNROLL for (std::uint32_t k = 0; k < kRanksOfWarp; ++k) {
        columns[k] = work.q + Inside(first + k, work.rank) * work.columns;
        sums[lane].v[k] = 0;
      }
      HR_UNROLL_BY_AT_A_TIME for (std::uint64_t i = lane % kSumLanes; i < work.columns;
                                  i += kSumLanes) {
        const float value = values[i];
        HR_UNROLL for (std::uint32_t k = 0; k < kRanksOfWarp; ++k) {
          sums[lane].v[k] = Plus(sums[lane].v[k], Times(value, columns[k][i]));
        }
      }
    });
    AddOthers(sums, 4);
    AddOthers(sums, 2);
    AddOthers(sums, 1);
    EachLane([&](std::uint32_t lane) {
      const std::uint64_t row = first_row + lane / kSumLanes;
      if (lane % kSumLanes != 0 || row >= work.rows) return;
      HR_UNROLL for (std::uint32_t k = 0; k < kRanksOfWarp; ++k) {
        if (first + k < work.rank) work.p[row * work.rank + first + k] = sums[lane].v[k];
      }
    });
  }
}

// Q = M^T P, or Q += M^T P from the second launch for a matrix on, of some rows.
HR_KERNEL void RightFactorBody(const FactorWork& work, std::uint64_t warp, std::uint64_t warps) {
  [[maybe_unused]] constexpr std::uint32_t kAtATime = 8;
  const std::uint64_t tiles = SharesOf(work.rank, kRanksOfWarp);
  HR_NO_UNROLL for (std::uint64_t item = warp; item < RightFactorItems(work); item += warps) {
    const std::uint64_t first_column = item / tiles * kLanes;
    const std::uint64_t first = item % tiles * kRanksOfWarp;
    FourEach sums;
    EachLane([&](std::uint32_t lane) {
      const float* const before = work.q + Inside(first_column + lane, work.columns);
      HR_UNROLL for (std::uint32_t k = 0; k < kRanksOfWarp; ++k) {
        const std::uint64_t at = Inside(first + k, work.rank) * work.columns;
        sums[lane].v[k] = work.rows_begin == 0 ? 0 : before[at];
      }
    });
    HR_UNROLL_BY_AT_A_TIME for (std::uint64_t row = work.rows_begin; row < work.rows_end; ++row) {
      EachLane([&](std::uint32_t lane) {
        const std::uint64_t column = Inside(first_column + lane, work.columns);
        const float value = work.values[row * work.columns + column];
        HR_UNROLL for (std::uint32_t k = 0; k < kRanksOfWarp; ++k) {
          const float factor = work.p[row * work.rank + Inside(first + k, work.rank)];
          sums[lane].v[k] = Plus(sums[lane].v[k], Times(value, factor));
        }
      });
    }
    EachLane([&](std::uint32_t lane) {
      const std::uint64_t column = first_column + lane;
      if (column >= work.columns) return;
      HR_UNROLL for (std::uint32_t k = 0; k < kRanksOfWarp; ++k) {
        if (first + k < work.rank) work.q[(first + k) * work.columns + column] = sums[lane].v[k];
      }
    });
  }
}

// A column of some rows of P Q^T, and of what the node has of it.
struct ProductColumn {
  Four of_all;
  Four of_own;
};
HR_KERNEL ProductColumn ProductOf(const FactorWork& work, std::uint64_t first_row,
                                  std::uint64_t column) {
  ProductColumn product{};
  HR_NO_UNROLL for (std::uint32_t k = 0; k < work.rank; ++k) {
    const float of_all = work.q[k * work.columns + column];
    const float of_own = work.own_q[k * work.columns + column];
    HR_UNROLL for (std::uint32_t r = 0; r < kRowsOfWarp; ++r) {
      const float factor = work.p[Inside(first_row + r, work.rows) * work.rank + k];
      product.of_all.v[r] = Plus(product.of_all.v[r], Times(factor, of_all));
      product.of_own.v[r] = Plus(product.of_own.v[r], Times(factor, of_own));
    }
  }
  return product;
}

// The elements have what was left out of them before (FactorAddBody).
HR_KERNEL void FactorProductBody(const FactorWork& work, std::uint64_t warp, std::uint64_t warps) {
  const std::uint64_t stripes = SharesOf(work.columns, kLanes);
  HR_NO_UNROLL for (std::uint64_t item = warp; item < FactorProductItems(work); item += warps) {
    const std::uint64_t first_row = item / stripes * kRowsOfWarp;
    EachLane([&](std::uint32_t lane) {
      const std::uint64_t column = item % stripes * kLanes + lane;
      if (column >= work.columns) return;
      ProductColumn product{};
      if (work.is_finite) product = ProductOf(work, first_row, column);
      HR_UNROLL for (std::uint32_t r = 0; r < kRowsOfWarp; ++r) {
        if (first_row + r >= work.rows) return;
        const std::uint64_t at = (first_row + r) * work.columns + column;
        const float left_out = Minus(work.values[at], product.of_own.v[r]);
        if (work.residual != nullptr) {
          work.residual[at] = work.is_finite && IsFinite(left_out) ? left_out : 0;
        }
        const float quotient = Over(product.of_all.v[r], work.divisor);
        work.values[at] = work.is_finite ? PlainNaN(quotient) : BitsAs<float>(kNaNBits);
      }
    });
  }
}

}  // namespace headrace::transport::kernels

// All of them, by name: X(name, Body) for headrace_<name>.
#define HR_FACTOR_KERNELS(X)       \
  X(factor_add, FactorAddBody)     \
  X(left_factor, LeftFactorBody)   \
  X(right_factor, RightFactorBody) \
  X(factor_product, FactorProductBody)
