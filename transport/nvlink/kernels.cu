// The kernels, as a GPU's driver finds them: headrace_sum_float32, ..., headrace_copy.
#include "transport/nvlink/kernel_list.h"

namespace headrace::transport::kernels {
namespace {

__device__ __forceinline__ std::uint32_t Thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ std::uint32_t Threads() { return gridDim.x * blockDim.x; }

}  // namespace

// __grid_constant__: parameters are read where the launch put them, by every thread, without a
// copy.
#define HR_DEFINE_KERNEL(reduction, dtype, Element, Operation, gradients)       \
  extern "C" __global__ void __launch_bounds__(kKernelThreads)                  \
      headrace_##reduction##_##dtype(const __grid_constant__ KernelWork work) { \
    ReduceBody<Element, Operation, gradients>(work, Thread(), Threads());       \
  }
HR_REDUCE_KERNELS(HR_DEFINE_KERNEL)

extern "C" __global__ void __launch_bounds__(kKernelThreads)
    headrace_copy(const __grid_constant__ KernelWork work) {
  CopyBody(work, Thread(), Threads());
}

}  // namespace headrace::transport::kernels
