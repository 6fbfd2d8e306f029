// Element types and reductions of the kernels, bit for bit those of transport/reduce: how an
// element is widened to what it is computed in, how two become one, and how the last is narrowed.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "transport/nvlink/kernel_work.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace headrace::transport::kernels {

template <class To, class From>
HR_KERNEL To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// One NaN for all: quiet, without payload.
HR_KERNEL float PlainNaN(float value) {
  return value == value ? value : BitsAs<float>(std::uint32_t{0x7FC00000});
}
HR_KERNEL double PlainNaN(double value) {
  return value == value ? value : BitsAs<double>(std::uint64_t{0x7FF8000000000000});
}

// Values that are computed in as they are stored.
template <class Number>
struct Plain {
  using Stored = Number;
  using Value = Number;
  static HR_KERNEL Value Decode(Stored stored) { return stored; }
  static HR_KERNEL Stored Encode(Value value) {
    if constexpr (std::is_floating_point_v<Number>) return PlainNaN(value);
    return value;
  }
};

// Integers that are computed in a wider type.
template <class Number, class Wide>
struct Widened {
  using Stored = Number;
  using Value = Wide;
  static HR_KERNEL Value Decode(Stored stored) { return static_cast<Wide>(stored); }
  static HR_KERNEL Stored Encode(Value value) { return static_cast<Number>(value); }
};

#ifdef __CUDA_ARCH__
// Two elements that one instruction narrowed, with the NaN of these kernels in the place of the
// instruction's own, 0x7FFF, from which it differs in the bits of `nan_difference`.
__device__ __forceinline__ std::uint32_t WithPlainNaNs(std::uint32_t pair, float low, float high,
                                                       std::uint32_t nan_difference) {
  const std::uint32_t in_low = low == low ? 0 : nan_difference;
  const std::uint32_t in_high = high == high ? 0 : nan_difference << 16;
  return pair ^ (in_low | in_high);
}
#endif

// The upper half of a float32; rounded to nearest even by adding just under half of the last kept
// place, and one more where that place is odd. On a GPU pairs are rounded by its own instruction.
struct BFloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  static HR_KERNEL Value Decode(Stored stored) {
    return BitsAs<float>(static_cast<std::uint32_t>(stored) << 16);
  }
  static HR_KERNEL Stored Encode(Value value) {
    const auto bits = BitsAs<std::uint32_t>(PlainNaN(value));
    return static_cast<Stored>((bits + (bits >> 16 & 1U) + 0x7FFFU) >> 16);
  }
#ifdef __CUDA_ARCH__
  static __device__ __forceinline__ std::uint32_t EncodePair(Value low, Value high) {
    const auto pair = BitsAs<std::uint32_t>(__floats2bfloat162_rn(low, high));
    return WithPlainNaNs(pair, low, high, 0x7FFF ^ 0x7FC0);
  }
#else
  static HR_KERNEL std::uint32_t EncodePair(Value low, Value high) {
    return Encode(low) | static_cast<std::uint32_t>(Encode(high)) << 16;
  }
#endif
};

// On a GPU by its own instructions, which differ from these steps in NaNs only.
struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;
#ifdef __CUDA_ARCH__
  static HR_KERNEL Value Decode(Stored stored) { return __half2float(__ushort_as_half(stored)); }
  static HR_KERNEL Stored Encode(Value value) {
    return value == value ? __half_as_ushort(__float2half_rn(value)) : Stored{0x7E00};
  }
  static __device__ __forceinline__ std::uint32_t EncodePair(Value low, Value high) {
    const auto pair = BitsAs<std::uint32_t>(__floats2half2_rn(low, high));
    return WithPlainNaNs(pair, low, high, 0x7FFF ^ 0x7E00);
  }
#else
  static HR_KERNEL std::uint32_t EncodePair(Value low, Value high) {
    return Encode(low) | static_cast<std::uint32_t>(Encode(high)) << 16;
  }
  static HR_KERNEL Value Decode(Stored stored) {
    const std::uint32_t magnitude = (stored & 0x7FFFU) << 13;
    const std::uint32_t sign = (stored & 0x8000U) << 16;
    // Moves the exponent's bias from 15 to 127; exact, for subnormal halves too.
    const auto scaled = BitsAs<std::uint32_t>(BitsAs<float>(magnitude) * 0x1p112F);
    return BitsAs<float>((magnitude >= 0x0F800000U ? magnitude | 0x7F800000U : scaled) | sign);
  }
  static HR_KERNEL Stored Encode(Value value) {
    if (!(value == value)) return 0x7E00;
    const auto bits = BitsAs<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t sign = bits >> 16 & 0x8000U;
    if (magnitude >= 0x47800000U) return static_cast<Stored>(sign | 0x7C00U);  // 65536 and above
    if (magnitude < 0x38800000U) {
      // Subnormal: adding 0.5 shifts the half's last place to float32's last place, and the
      // addition itself rounds to nearest even.
      const auto sum = BitsAs<std::uint32_t>(BitsAs<float>(magnitude) + 0.5F);
      return static_cast<Stored>(sign | (sum - BitsAs<std::uint32_t>(0.5F)));
    }
    // Changes the bias, then rounds as BFloat16 does. 65520 and more carry to infinity.
    const std::uint32_t odd = magnitude >> 13 & 1U;
    return static_cast<Stored>(sign | ((magnitude + odd + 0xC8000FFFU) >> 13));
  }
#endif
};

// Sums and products of integers wrap, which is defined for unsigned numbers and the same bits.
struct Sum {
  template <class Value>
  static HR_KERNEL Value Combine(Value sum, Value next) {
    return static_cast<Value>(sum + next);
  }
  // Divides where the launch is an average's, rather than multiplies by an inverse that is rounded,
  // so that the quotient is rounded correctly. Integers truncate.
  template <class Value>
  static HR_KERNEL Value Finish(Value sum, const KernelWork& work) {
    if (work.divisor != 0) return static_cast<Value>(sum / static_cast<Value>(work.divisor));
    if constexpr (std::is_floating_point_v<Value>) return sum * static_cast<Value>(work.factor);
    return sum;
  }
};

struct Product {
  template <class Value>
  static HR_KERNEL Value Combine(Value product, Value next) {
    return static_cast<Value>(product * next);
  }
  template <class Value>
  static HR_KERNEL Value Finish(Value product, const KernelWork&) {
    return product;
  }
};

// `next` wins when it is strictly better or NaN, and no number beats a NaN.
struct Min : Product {
  template <class Value>
  static HR_KERNEL Value Combine(Value least, Value next) {
    return next < least || !(next == next) ? next : least;
  }
};
struct Max : Product {
  template <class Value>
  static HR_KERNEL Value Combine(Value most, Value next) {
    return next > most || !(next == next) ? next : most;
  }
};

}  // namespace headrace::transport::kernels
