// The parameters of a block for the kernels, apart from its elements. For this folder and for the
// kernels of GPUs, which nvcc compiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/codec/block_size.h"

#ifdef __CUDACC__
#define HR_ON_GPUS_TOO __host__ __device__
#else
#define HR_ON_GPUS_TOO
#endif

namespace headrace::transport {

struct BlockKind {
  std::size_t count = kCodecBlock;  // elements that are no filling
  std::size_t kept = 0;             // of codecs that keep some elements
  std::uint32_t seed = 0;           // of codecs that leave something to chance
};

// 32 bits that look like chance, as Scrambled makes them on a vector.
HR_ON_GPUS_TOO constexpr std::uint32_t ScrambledOf(std::uint32_t value) {
  value = (value ^ value >> 16) * 0x7FEB352DU;
  value = (value ^ value >> 15) * 0x846CA68BU;
  return value ^ value >> 16;
}

// For block `number` of a range. `seed` is as good as any other: what differs in any bit gives
// others.
HR_ON_GPUS_TOO constexpr std::uint32_t SeedOfBlock(std::uint64_t seed, std::uint64_t number) {
  std::uint64_t mixed = seed + (number + 1) * 0x9E3779B97F4A7C15U;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9U;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBU;
  return static_cast<std::uint32_t>(mixed >> 32);
}

}  // namespace headrace::transport
