// The kernels of the nvlink lane: the bodies that nvcc compiles for GPUs, run here for every thread
// of a launch, one after the other.
#include <iterator>

#include "tests/support/cuda_double/machine.h"
#include "transport/nvlink/kernel_list.h"

namespace headrace::cuda_double {
namespace {

using transport::kernels::BFloat16;
using transport::kernels::CopyBody;
using transport::kernels::Float16;
using transport::kernels::Int128;
using transport::kernels::Max;
using transport::kernels::Min;
using transport::kernels::Plain;
using transport::kernels::Product;
using transport::kernels::ReduceBody;
using transport::kernels::Sum;
using transport::kernels::Widened;

bool MayRead(CuDevice device, const std::byte* from, std::size_t size) {
  return headrace_cuda_double_may_touch(device, AddressOf(from), size, 0) != 0;
}

bool MayWrite(CuDevice device, const std::byte* to, std::size_t size) {
  return headrace_cuda_double_may_touch(device, AddressOf(to), size, 1) != 0;
}

// Whether the GPU may touch all that the kernel will; else its context is broken, as by a real
// kernel's first such access.
bool MayRun(const CudaDoubleLaunch& launch, const KernelWork& work, bool copies) {
  for (std::uint32_t s = 0; s < work.stretches_count; ++s) {
    const KernelStretch& stretch = work.stretches[s];
    const std::uint32_t inputs = copies ? 1 : work.inputs_count;
    for (std::uint32_t i = 0; i < inputs; ++i) {
      const std::byte* from = InputOf(work, stretch, stretch.first_input + i);
      if (!MayRead(launch.device, from, stretch.size)) return false;
    }
    for (std::uint32_t i = 0; i < stretch.outputs_count; ++i) {
      const std::byte* to = OutputOf(work, stretch, stretch.first_output + i);
      if (!MayWrite(launch.device, to, stretch.size)) return false;
    }
  }
  return true;
}

template <typename Body>
void RunThreads(const CudaDoubleLaunch& launch, bool copies, Body body) {
  const auto& work = *static_cast<const KernelWork*>(launch.parameters[0]);
  if (!MayRun(launch, work, copies)) return;
  const std::uint32_t threads = launch.grid[0] * launch.block[0];
  for (std::uint32_t thread = 0; thread < threads; ++thread) body(work, thread, threads);
}

#define HR_RUN_KERNEL(reduction, dtype, Element, Operation, gradients)     \
  void Run_##reduction##_##dtype(const CudaDoubleLaunch* launch) {         \
    RunThreads(*launch, false, ReduceBody<Element, Operation, gradients>); \
  }
HR_REDUCE_KERNELS(HR_RUN_KERNEL)

void RunCopy(const CudaDoubleLaunch* launch) { RunThreads(*launch, true, CopyBody); }

}  // namespace

void AddReduceKernels(std::map<std::string, Kernel>& kernels) {
  const std::vector<std::size_t> sizes = {sizeof(KernelWork)};
#define HR_ADD_KERNEL(reduction, dtype, Element, Operation, gradients) \
  kernels["headrace_" #reduction "_" #dtype] = {&Run_##reduction##_##dtype, sizes};
  HR_REDUCE_KERNELS(HR_ADD_KERNEL)
  kernels["headrace_copy"] = {&RunCopy, sizes};
}

}  // namespace headrace::cuda_double
