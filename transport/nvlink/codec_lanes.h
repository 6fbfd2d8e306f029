// The lanes of a warp, which work on a block together. On a GPU each thread is one of them and they
// meet in shuffles; on the host one thread is all of them, one after the other. So what lies
// between two meetings is a function of a lane, and what a lane keeps from one to the next is a
// PerLane.
//
// All lanes of a warp take the same way between two meetings.
#pragma once

#include <cstdint>

#include "transport/nvlink/codec_work.h"
#include "transport/nvlink/kernel_elements.h"

namespace headrace::transport::kernels {

inline constexpr std::uint32_t kInfinityBits = 0x7F800000;
inline constexpr std::uint32_t kEight = kBlockCount / kLanes;  // elements of a block in a lane

// Products and sums that nvcc does not fuse, rounded to nearest.
HR_KERNEL float Times(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
HR_KERNEL float Plus(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
HR_KERNEL float Minus(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}
HR_KERNEL float Over(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

template <class T>
struct PerLane {
#ifdef __CUDA_ARCH__
  HR_KERNEL T& operator[](std::uint32_t) { return own; }
  T own;
#else
  T& operator[](std::uint32_t lane) { return each[lane]; }
  T each[kLanes];
#endif
};

template <class Visit>
HR_KERNEL void EachLane(Visit visit) {
#ifdef __CUDA_ARCH__
  visit(threadIdx.x % kLanes);
#else
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) visit(lane);
#endif
}

HR_KERNEL std::uint32_t MaxOfLanes(PerLane<std::uint32_t>& values) {
#ifdef __CUDA_ARCH__
  return __reduce_max_sync(~0U, values.own);
#else
  std::uint32_t most = 0;
  for (const std::uint32_t value : values.each) most = value > most ? value : most;
  return most;
#endif
}

HR_KERNEL std::uint32_t SumOfLanes(PerLane<std::uint32_t>& values) {
#ifdef __CUDA_ARCH__
  return __reduce_add_sync(~0U, values.own);
#else
  std::uint32_t sum = 0;
  for (const std::uint32_t value : values.each) sum += value;
  return sum;
#endif
}

// Bit i: what lane i has is true.
HR_KERNEL std::uint32_t LanesWhere(PerLane<bool>& values) {
#ifdef __CUDA_ARCH__
  return __ballot_sync(~0U, values.own);
#else
  std::uint32_t bits = 0;
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    bits |= std::uint32_t{values.each[lane]} << lane;
  }
  return bits;
#endif
}

// What lane `from` has.
template <class T>
HR_KERNEL T OfLane(PerLane<T>& values, std::uint32_t from) {
#ifdef __CUDA_ARCH__
  return __shfl_sync(~0U, values.own, static_cast<int>(from));
#else
  return values.each[from];
#endif
}

HR_KERNEL std::uint32_t CountOf(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<std::uint32_t>(__popc(bits));
#else
  return static_cast<std::uint32_t>(__builtin_popcount(bits));
#endif
}

HR_KERNEL float Least(float a, float b) { return b < a ? b : a; }
HR_KERNEL float Magnitude(float value) {
  return BitsAs<float>(BitsAs<std::uint32_t>(value) & 0x7FFFFFFFU);
}
HR_KERNEL std::uint32_t MagnitudeBits(float value) {
  return BitsAs<std::uint32_t>(value) & 0x7FFFFFFFU;
}
HR_KERNEL bool IsFinite(float value) { return MagnitudeBits(value) < kInfinityBits; }

// A lane's elements of a block.
struct Eight {
  float v[kEight];
};
using EightEach = PerLane<Eight>;

// Which elements those are: four of either half of the block, or one in 32.
struct InHalves {
  static constexpr bool kInFours = true;
  static HR_KERNEL std::uint32_t At(std::uint32_t lane, std::uint32_t i) {
    return i / 4 * (kBlockCount / 2) + 4 * lane + i % 4;
  }
};
struct InTurns {
  static constexpr bool kInFours = false;
  static HR_KERNEL std::uint32_t At(std::uint32_t lane, std::uint32_t i) {
    return i * kLanes + lane;
  }
};

HR_KERNEL std::uint32_t LargestOf(EightEach& values) {
  PerLane<std::uint32_t> most;
  EachLane([&](std::uint32_t lane) {
    most[lane] = 0;
    HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
      const std::uint32_t bits = MagnitudeBits(values[lane].v[i]);
      most[lane] = bits > most[lane] ? bits : most[lane];
    }
  });
  return MaxOfLanes(most);
}

// What lane `lane ^ mask` has.
HR_KERNEL EightEach OfOthers(EightEach& values, std::uint32_t mask) {
  EightEach others;
#ifdef __CUDA_ARCH__
  HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) {
    others.own.v[i] = __shfl_xor_sync(~0U, values.own.v[i], static_cast<int>(mask));
  }
#else
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) others[lane] = values[lane ^ mask];
#endif
  return others;
}

HR_KERNEL void Clear(EightEach& values) {
  EachLane([&](std::uint32_t lane) {
    HR_UNROLL for (std::uint32_t i = 0; i < kEight; ++i) values[lane].v[i] = 0;
  });
}

}  // namespace headrace::transport::kernels
