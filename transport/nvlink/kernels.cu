// The kernels, as a GPU's driver finds them: headrace_sum_float32, ..., headrace_copy, and
// headrace_switched_float32, ..., and headrace_encode_int8, headrace_decode_int8, ...
#include "transport/nvlink/codec_list.h"
#include "transport/nvlink/factor_bodies.h"
#include "transport/nvlink/kernel_list.h"
#include "transport/nvlink/kernel_switched.h"
#include "transport/nvlink/lossless_bodies.h"

namespace headrace::transport::kernels {
namespace {

__device__ __forceinline__ std::uint32_t Thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ std::uint32_t Threads() { return gridDim.x * blockDim.x; }

}  // namespace

// One block at least is to fit a multiprocessor, no more: a thread may have 128 registers then,
// which eight loads in flight and their sums take.
// __grid_constant__: parameters are read where the launch put them, by every thread, without a
// copy.
#define HR_DEFINE_KERNEL(reduction, dtype, Element, Operation, gradients)       \
  extern "C" __global__ void __launch_bounds__(kKernelThreads, 1)               \
      headrace_##reduction##_##dtype(const __grid_constant__ KernelWork work) { \
    ReduceBody<Element, Operation, gradients>(work, Thread(), Threads());       \
  }
HR_REDUCE_KERNELS(HR_DEFINE_KERNEL)

extern "C" __global__ void __launch_bounds__(kKernelThreads, 1)
    headrace_copy(const __grid_constant__ KernelWork work) {
  CopyBody(work, Thread(), Threads());
}

// What is before Hopper has no such instructions, and no such kernel is launched there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HR_MULTIMEM(instruction, ...) asm volatile(instruction __VA_ARGS__)
#else
#define HR_MULTIMEM(instruction, ...) __trap()
#endif

#define HR_DEFINE_SWITCHED(dtype, Element, accumulation, type)                                     \
  struct Switch_##dtype {                                                                          \
    static __device__ __forceinline__ Vector LoadSum(const std::byte* at) {                        \
      Vector sum{};                                                                                \
      HR_MULTIMEM("multimem.ld_reduce.relaxed.sys.global.add" accumulation ".v4." type             \
                  " {%0, %1, %2, %3}, [%4];",                                                      \
                  : "=r"(sum.words[0]), "=r"(sum.words[1]), "=r"(sum.words[2]), "=r"(sum.words[3]) \
                  : "l"(at)                                                                        \
                  : "memory");                                                                     \
      return sum;                                                                                  \
    }                                                                                              \
    static __device__ __forceinline__ void Store(std::byte* at, const Vector& vector) {            \
      HR_MULTIMEM("multimem.st.relaxed.sys.global.v4." type " [%0], {%1, %2, %3, %4};",            \
                  :                                                                                \
                  : "l"(at), "r"(vector.words[0]), "r"(vector.words[1]), "r"(vector.words[2]),     \
                    "r"(vector.words[3])                                                           \
                  : "memory");                                                                     \
    }                                                                                              \
  };                                                                                               \
  extern "C" __global__ void __launch_bounds__(kKernelThreads, 1)                                  \
      headrace_switched_##dtype(const __grid_constant__ KernelWork work) {                         \
    SwitchedSumBody<Element, Switch_##dtype>(work, Thread(), Threads());                           \
  }
HR_SWITCHED_KERNELS(HR_DEFINE_SWITCHED)

#define HR_DEFINE_CODEC(codec, kind, Format)                             \
  extern "C" __global__ void __launch_bounds__(kKernelThreads)           \
      headrace_encode_##codec(const __grid_constant__ EncodeWork work) { \
    EncodeBody<Format>(work, Thread() / kLanes, Threads() / kLanes);     \
  }                                                                      \
  extern "C" __global__ void __launch_bounds__(kKernelThreads)           \
      headrace_decode_##codec(const __grid_constant__ DecodeWork work) { \
    DecodeBody<Format>(work, Thread() / kLanes, Threads() / kLanes);     \
  }
HR_CODEC_KERNELS(HR_DEFINE_CODEC)

extern "C" __global__ void __launch_bounds__(kKernelThreads)
    headrace_add_residual(const __grid_constant__ EncodeWork work) {
  AddResidualBody(work, Thread() / kLanes, Threads() / kLanes);
}

// A launch is one block of threads.
extern "C" __global__ void __launch_bounds__(kKernelThreads)
    headrace_encode_lossless(const __grid_constant__ LosslessEncodeWork work) {
  __shared__ LosslessScratch scratch[kKernelThreads / kLanes];
  const std::uint32_t warp = threadIdx.x / kLanes;
  MeasureLosslessBody(work, warp, kKernelThreads / kLanes);
  __syncthreads();
  if (warp == 0) PlaceLosslessBody(work);
  __syncthreads();
  WriteLosslessBody(work, warp, kKernelThreads / kLanes, scratch[warp]);
}

extern "C" __global__ void __launch_bounds__(kKernelThreads)
    headrace_decode_lossless(const __grid_constant__ LosslessDecodeWork work) {
  __shared__ LosslessScratch scratch[kKernelThreads / kLanes];
  DecodeLosslessBody(work, Thread() / kLanes, Threads() / kLanes, scratch[threadIdx.x / kLanes]);
}

#define HR_DEFINE_FACTORS(name, Body)                     \
  extern "C" __global__ void __launch_bounds__(kKernelThreads)   \
      headrace_##name(const __grid_constant__ FactorWork work) { \
    Body(work, Thread() / kLanes, Threads() / kLanes);           \
  }
HR_FACTOR_KERNELS(HR_DEFINE_FACTORS)

}  // namespace headrace::transport::kernels
