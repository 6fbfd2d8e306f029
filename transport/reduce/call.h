// What ReduceInto hands to the kernels of one element family. Private to this folder.
#pragma once

#include <cstddef>

#include "ipc/base/collective.h"
#include "transport/simd_targets.h"
#include "transport/transport.h"

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
