// The objects behind the handles of the C header. Immutable once returned to the caller, so any
// thread may read them. Only a reconnect changes their numbers, while no thread is in a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "client/include/headrace/headrace.h"
#include "client/lib/control.h"
#include "client/lib/gpu_memory.h"
#include "ipc/base/collective.h"
#include "ipc/sealed_memory.h"

struct hr_segment {
  std::uint32_t id = 0;
  int device = -1;  // -1: host memory
  std::byte* address = nullptr;
  std::size_t size = 0;
  headrace::ipc::SealedMemory memory;  // of the host
  // Memory of a GPU that the library allocated; shared with those who keep it.
  std::shared_ptr<const headrace::client::GpuMemory> gpu_memory;
};

struct hr_memory {
  int pid;  // whose it is: a forked child has none of it
  // Shared with the segment it was kept from, and with others who keep it.
  std::shared_ptr<const headrace::client::GpuMemory> memory;
};

struct hr_tensor {
  std::uint32_t id;
  std::byte* address;
  std::uint64_t count;  // elements
  headrace::DType dtype;
  int device;  // that of its segment
  // What the service is sent of it, but for the segment's number.
  const hr_segment* segment;
  headrace::client::TensorSpec spec;
};
