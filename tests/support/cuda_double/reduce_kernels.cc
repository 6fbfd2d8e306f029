// The kernels of the nvlink lane: the bodies that nvcc compiles for GPUs, run here for every thread
// of a launch, one after the other.
#include <iterator>

#include "ipc/base/check.h"
#include "tests/support/cuda_double/machine.h"
#include "tests/support/cuda_double/multicast.h"
#include "transport/nvlink/kernel_list.h"
#include "transport/nvlink/kernel_switched.h"

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
using transport::kernels::SwitchedSumBody;
using transport::kernels::Vector;
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

// The GPU whose kernel runs on this thread: the instructions name none.
CuDevice& RunningDevice() {
  static thread_local CuDevice device = 0;
  return device;
}

// What the switch does. Its order is not ours: from the last that was bound to the first.
template <class Element>
struct DoubledSwitch {
  static std::vector<std::byte*> Bound(const std::byte* at) {
    auto bound = BoundAt(RunningDevice(), at, sizeof(Vector));
    HR_CHECK(!bound.empty(), "a kernel touches a multicast address where not all is bound");
    return bound;
  }
  static Vector LoadSum(const std::byte* at) {
    using Stored = typename Element::Stored;
    constexpr std::size_t kElements = sizeof(Vector) / sizeof(Stored);
    const auto bound = Bound(at);
    typename Element::Value sums[kElements] = {};
    for (auto from = bound.rbegin(); from != bound.rend(); ++from) {
      Stored stored[kElements];
      memcpy(stored, *from, sizeof(stored));
      for (std::size_t i = 0; i < kElements; ++i) sums[i] += Element::Decode(stored[i]);
    }
    Stored results[kElements];
    for (std::size_t i = 0; i < kElements; ++i) results[i] = Element::Encode(sums[i]);
    Vector vector;
    memcpy(&vector, results, sizeof(vector));
    return vector;
  }
  static void Store(std::byte* at, const Vector& vector) {
    for (std::byte* const to : Bound(at)) memcpy(to, &vector, sizeof(vector));
  }
};

#define HR_RUN_SWITCHED(dtype, Element, accumulation, type)                       \
  void RunSwitched_##dtype(const CudaDoubleLaunch* launch) {                      \
    RunningDevice() = launch->device;                                             \
    RunThreads(*launch, false, SwitchedSumBody<Element, DoubledSwitch<Element>>); \
  }
HR_SWITCHED_KERNELS(HR_RUN_SWITCHED)

void RunCopy(const CudaDoubleLaunch* launch) { RunThreads(*launch, true, CopyBody); }

}  // namespace

void AddReduceKernels(std::map<std::string, Kernel>& kernels) {
  const std::vector<std::size_t> sizes = {sizeof(KernelWork)};
#define HR_ADD_KERNEL(reduction, dtype, Element, Operation, gradients) \
  kernels["headrace_" #reduction "_" #dtype] = {&Run_##reduction##_##dtype, sizes};
  HR_REDUCE_KERNELS(HR_ADD_KERNEL)
  kernels["headrace_copy"] = {&RunCopy, sizes};
#define HR_ADD_SWITCHED(dtype, Element, accumulation, type) \
  kernels["headrace_switched_" #dtype] = {&RunSwitched_##dtype, sizes};
  HR_SWITCHED_KERNELS(HR_ADD_SWITCHED)
}

}  // namespace headrace::cuda_double
