// Sums that the switch between GPUs makes (NVLS): one read of a multicast address gives the sum of
// all GPUs' memory there, one write brings a result to all of them, so that a GPU's links carry
// each element once in either direction.
//
// The order of such a sum is the switch's, and float16 and bfloat16 are rounded when the switch is
// done (it accumulates in float32); an average is divided afterwards and rounded again. Units at
// the ends of a stretch that are not full are summed from the members' own memory.
#pragma once

#include "transport/nvlink/kernel_bodies.h"

namespace headrace::transport::kernels {

// Switch: LoadSum(address) and Store(address, vector), of 16 bytes.
template <class Element, class Switch>
struct SwitchedSum {
  using Stored = typename Element::Stored;
  static constexpr std::uint32_t kElements = kUnitSize / sizeof(Stored);
  static constexpr std::uint32_t kUnroll = 4;
  static constexpr std::uint32_t kUnrollUnaligned = 4;  // of no use: they lie alike

  static HR_KERNEL void Divide(Vector& vector, const KernelWork& work) {
    Stored stored[kElements];
    memcpy(stored, &vector, sizeof(stored));
    HR_UNROLL for (std::uint32_t i = 0; i < kElements; ++i) {
      stored[i] = Element::Encode(Sum::Finish(Element::Decode(stored[i]), work));
    }
    memcpy(&vector, stored, sizeof(stored));
  }

  template <bool kAligned, std::uint32_t kCount>
  static HR_KERNEL void Units(const KernelWork& work, const KernelStretch& stretch,
                              std::uint32_t at, std::uint32_t step) {
    std::byte* const all = work.multicast + stretch.offset + at;
    Vector sums[kCount];
    HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
      sums[u] = Switch::LoadSum(all + std::size_t{u} * step);
    }
    if (work.divisor != 0 || work.factor != 1) {
      HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) Divide(sums[u], work);
    }
    if (work.multicast_outputs) {
      HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
        Switch::Store(all + std::size_t{u} * step, sums[u]);
      }
      return;
    }
    HR_NO_UNROLL for (std::uint32_t i = 0; i < stretch.outputs_count; ++i) {
      std::byte* const to = OutputOf(work, stretch, stretch.first_output + i) + at;
      HR_UNROLL for (std::uint32_t u = 0; u < kCount; ++u) {
        StoreVector<kAligned>(to + std::size_t{u} * step, sums[u]);
      }
    }
  }

  static HR_KERNEL void Part(const KernelWork& work, const KernelStretch& stretch,
                             std::uint32_t begin, std::uint32_t end) {
    Reduce<Element, Sum, 0>::Part(work, stretch, begin, end);
  }
};

// Units lie at multiples of 16 bytes in every buffer, and so at the multicast address.
template <class Element, class Switch>
HR_KERNEL void SwitchedSumBody(const KernelWork& work, std::uint32_t thread,
                               std::uint32_t threads) {
  MoveUnits<SwitchedSum<Element, Switch>, true>(work, thread, threads);
}

}  // namespace headrace::transport::kernels

// All kernels of this kind, by name: X(dtype, element, accumulation, type), the last two as the
// instruction has them.
#define HR_SWITCHED_KERNELS(X)              \
  X(float32, Plain<float>, "", "f32")       \
  X(float16, Float16, ".acc::f32", "f16x2") \
  X(bfloat16, BFloat16, ".acc::f32", "bf16x2")
