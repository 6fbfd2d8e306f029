// What tests may ask of the double beyond what a driver offers. The functions are exported by the
// library itself; look them up with dlsym, or use DoubledDriver.
//
// The environment says what machine the double plays; it is read at cuInit and at restart, in
// variables that begin with HEADRACE_CUDA_DOUBLE_:
//   DEVICES   GPUs of the machine (2)
//   MEMORY    bytes of each (1 GiB); what one process allocates is held against it
//   PEERS     "all", "none", or pairs "0-1,1-0": the first reaches the second (all)
//   VISIBLE   GPUs that this process sees, as in CUDA_VISIBLE_DEVICES (all)
//   LACKS     of: stream_words, virtual_memory, posix_fds, host_register, legacy_peers (memory that
//             one GPU's context opened by a CUDA IPC handle is not reached by its peers)
//   MULTICAST GPUs that can take part in multicast, from the first on (0)
//   VERSION   of the driver (13000)
//   FAIL      "cuMemMap:3:2,...": the third call of cuMemMap returns error 2
//   BREAK     "cuLaunchKernel:3:700,...": what the third call of cuLaunchKernel puts into a
//             stream breaks the context with error 700 when its turn comes; the call itself returns
//             success
//   PID       what the driver takes this process's pid to be, as in a pid namespace
//   SEED      of random delays: of what streams do, and of calls that are slow on a real driver (0:
//             none)
//   WAITS     calls that wait, while they hold a GPU's lock, for all that stands in its streams, as
//             some driver might: of cuMemMap, cuMemUnmap, cuMemSetAccess, cuMemAlloc, ... (none;
//             cuMemFree does anyway)
//   MULTIPROCESSORS of each GPU, which 2048 threads each fit (16)
//   MACHINE   a name; processes of different names share no GPU ("0")
//
// CUDA_DEVICE_MAX_CONNECTIONS says how many hardware queues each GPU has (8, 32 at most), as it
// does to a real driver (CUDA Programming Guide, CUDA Environment Variables).
//
// Each rule names the page that has it, as of CUDA 13.0: of the CUDA Driver API (whose text is also
// in cuda.h) or of the CUDA Programming Guide. What no page has is called assumed, with the reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/memory/cuda_abi.h"

// What this process holds of the double, all zero once everything is given back.
struct CudaDoubleCounts {
  std::uint64_t context_uses;  // of primary contexts
  std::uint64_t memory_handles;
  std::uint64_t reservations;
  std::uint64_t mappings;
  std::uint64_t allocations;  // cuMemAlloc
  std::uint64_t legacy_mappings;
  std::uint64_t host_registrations;
  std::uint64_t streams;
  std::uint64_t events;
  std::uint64_t modules;
  // Since the start: things that were still there when their context went.
  std::uint64_t lost_with_context;
};

// A launch, as the host code of a kernel sees it: once, not once for each thread.
struct CudaDoubleLaunch {
  headrace::transport::CuDevice device;
  std::uint32_t grid[3];
  std::uint32_t block[3];
  std::uint32_t shared_size;
  void* const* parameters;  // one pointer for each, to a copy made at the launch
};
using CudaDoubleKernel = void (*)(const CudaDoubleLaunch*);

// What cuLaunchKernelEx takes (CUlaunchAttribute, CUlaunchConfig), which the double of NCCL calls
// and the project does not. Of the attributes the double knows one.
struct CudaDoubleLaunchAttribute {
  static constexpr std::uint32_t kLaunchCompletionEvent = 12;
  std::uint32_t id;
  std::uint32_t unused;
  headrace::transport::CuEvent event;  // of kLaunchCompletionEvent
  std::int32_t flags;
  std::uint8_t rest[52];
};
struct CudaDoubleLaunchConfig {
  std::uint32_t grid[3];
  std::uint32_t block[3];
  std::uint32_t shared_size;
  headrace::transport::CuStream stream;
  CudaDoubleLaunchAttribute* attributes;
  std::uint32_t attributes_count;
};
using CudaDoubleLaunchEx = headrace::transport::CuResult (*)(const CudaDoubleLaunchConfig* config,
                                                             headrace::transport::CuFunction,
                                                             void** parameters, void** extra);

#pragma GCC visibility push(default)
extern "C" {
void headrace_cuda_double_counts(CudaDoubleCounts* counts);
// Reads the environment again. Returns 0 and does nothing while this process holds anything.
int headrace_cuda_double_restart();
// The `nth` call of `function` from now on, from 1, returns `result`. A further one adds.
void headrace_cuda_double_fail(const char* function, std::uint64_t nth,
                               headrace::transport::CuResult result);
// What the `nth` call of `function` from now on puts into a stream breaks the context with `result`
// instead of being done, when its turn comes: later calls get to know of it.
void headrace_cuda_double_break(const char* function, std::uint64_t nth,
                                headrace::transport::CuResult result);
// Modules have this kernel from now on, beside those of the project (reduce_kernels.cc,
// codec_kernels.cc). `body` runs on the stream's thread.
void headrace_cuda_double_kernel(const char* name, CudaDoubleKernel body,
                                 const std::size_t* parameter_sizes, std::size_t parameters_count);
// For kernels: whether `device` may read (or also write) there. A kernel of a real GPU would end
// its context otherwise; the double does so when the kernel calls this and must not.
int headrace_cuda_double_may_touch(headrace::transport::CuDevice device,
                                   headrace::transport::CuAddress address, std::size_t size,
                                   int writes);
}
#pragma GCC visibility pop
