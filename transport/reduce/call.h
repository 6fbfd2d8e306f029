// What ReduceInto hands to the kernels of one element family. Private to this folder.
#pragma once

#include <cstddef>

#include "ipc/base/collective.h"
#include "transport/transport.h"

// The targets worth their code size: x86 with and without AVX2 and AVX-512, and a portable one that
// stands for everything older. SVE vectors have no fixed size, so Arm runs NEON.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

namespace headrace::transport {

struct ReduceCall {
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  const std::byte* const* inputs = nullptr;
  std::size_t inputs_count = 0;
  std::byte* const* outputs = nullptr;
  std::size_t outputs_count = 0;
  std::size_t offset = 0;   // bytes, into every input and output
  std::size_t size = 0;     // bytes, a whole number of elements
  std::size_t divisor = 1;  // of averages
};

// One function per family of element types, each dispatched to the best SIMD target.
void ReduceFloats(const ReduceCall& call);           // float32, float64
void ReduceHalves(const ReduceCall& call);           // float16, bfloat16
void ReduceIntegers(const ReduceCall& call);         // int32, int64, uint8, except averages
void ReduceIntegerAverages(const ReduceCall& call);  // int32, int64, uint8

}  // namespace headrace::transport
