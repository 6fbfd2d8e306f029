// The parameters of one launch of a kernel: where memory is and which parts of it to move. Passed
// by value, so that nothing has to be uploaded first; CUDA allows 4 KiB of parameters.
//
// Shared by the kernels and their callers: plain fields, no library.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define HR_KERNEL __host__ __device__ __forceinline__
#define HR_UNROLL _Pragma("unroll")
#define HR_UNROLL_BY_AT_A_TIME _Pragma("unroll kAtATime")
#define HR_NO_UNROLL _Pragma("unroll 1")
#else
#define HR_KERNEL inline
#define HR_UNROLL
#define HR_UNROLL_BY_AT_A_TIME
#define HR_NO_UNROLL
#endif

namespace headrace::transport {

inline constexpr std::uint32_t kKernelThreads = 512;  // of a block of threads
inline constexpr std::uint32_t kStretchesMax = 64;    // of one launch
inline constexpr std::uint32_t kBuffersMax = 64;      // inputs, and outputs
inline constexpr std::uint32_t kUnitSize = 16;        // bytes: the widest access there is

// Bytes that lie in one piece in every buffer, cut into units at multiples of 16 bytes in the
// memory of its first input: all are full but perhaps the first and the last.
struct KernelStretch {
  std::uint64_t offset;         // behind the buffer's pointer
  std::uint64_t packed_offset;  // the same of buffers without runs, or of one part only
  std::uint32_t size;
  std::uint32_t units_end;     // units of this stretch and of those before
  std::uint16_t first_input;   // of a copy: the only one
  std::uint16_t first_output;  // of those that this stretch is written to
  std::uint16_t outputs_count;
};

struct KernelWork {
  const std::byte* inputs[kBuffersMax];
  std::byte* outputs[kBuffersMax];
  std::uint64_t packed_inputs;  // bit i: buffer i is reached by `packed_offset`
  std::uint64_t packed_outputs;
  std::uint32_t inputs_count;
  std::uint32_t stretches_count;
  std::uint32_t divisor;   // of the average; 0: `factor` is it, or there is none
  float factor = 1;        // of floating point, where it is exactly what dividing would be
  std::byte* multicast;    // all inputs at one address; null: there is none
  bool multicast_outputs;  // and all outputs
  bool aligned;            // units lie at multiples of 16 bytes in every buffer
  KernelStretch stretches[kStretchesMax];
};
static_assert(sizeof(KernelWork) <= 4096);

// The launch is an average's over `count`. A power of two has an exact inverse, by which a product
// is the same bits as the quotient (both round the same number once), and takes one instruction
// where a division takes about ten.
HR_KERNEL void SetAverage(KernelWork& work, std::uint32_t count, bool is_floating) {
  const bool is_power = count != 0 && (count & (count - 1)) == 0;
  work.factor = is_floating && is_power ? 1.0F / static_cast<float>(count) : 1.0F;
  work.divisor = is_floating && is_power ? 0 : count;
}

HR_KERNEL std::uintptr_t AddressOf(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}
HR_KERNEL const std::byte* InputOf(const KernelWork& work, const KernelStretch& stretch,
                                   std::uint32_t index) {
  const bool packed = (work.packed_inputs >> index & 1U) != 0;
  return work.inputs[index] + (packed ? stretch.packed_offset : stretch.offset);
}
HR_KERNEL std::byte* OutputOf(const KernelWork& work, const KernelStretch& stretch,
                              std::uint32_t index) {
  const bool packed = (work.packed_outputs >> index & 1U) != 0;
  return work.outputs[index] + (packed ? stretch.packed_offset : stretch.offset);
}
// Bytes of the first unit that lie before the stretch.
HR_KERNEL std::uint32_t LeadOf(const KernelWork& work, const KernelStretch& stretch) {
  return static_cast<std::uint32_t>(AddressOf(InputOf(work, stretch, stretch.first_input)) %
                                    kUnitSize);
}
HR_KERNEL std::uint32_t UnitsOf(const KernelWork& work, const KernelStretch& stretch) {
  return (LeadOf(work, stretch) + stretch.size + kUnitSize - 1) / kUnitSize;
}

}  // namespace headrace::transport
