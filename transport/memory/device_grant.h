// GPU memory that is handed to another process: the claim, and the descriptors that it names.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "transport/memory/cuda_driver.h"

namespace headrace::transport {

struct DeviceGrant {
  DeviceHandle handle;
  std::vector<UniqueFd> fds;
  CuDevice device = 0;  // where the memory is, as this process numbers its GPUs
};

// Memory of `address`, `size` that somebody else allocated (PyTorch's caching allocator, say): as a
// legacy handle of the allocation it lies in, or as a descriptor for every piece that is mapped
// there. What cannot be shared is refused, with the reason and what to do instead. The memory must
// stay allocated for as long as the importer uses it. Any thread, whatever context is current on
// it.
Result<DeviceGrant> GrantExisting(const CudaDriver& driver, CuAddress address, std::uint64_t size);

// The allocation that an address of a GPU lies in: of cudaMalloc all of it, of memory that is
// mapped in pieces that piece.
struct DeviceAllocation {
  CuAddress base = 0;
  std::uint64_t size = 0;
  CuDevice device = 0;       // as this process numbers its GPUs
  std::uint64_t number = 0;  // never given to another one of this process; 0: the driver tells none
};

// Refuses what GrantExisting refuses because it is no memory of a GPU.
Result<DeviceAllocation> AllocationAt(const CudaDriver& driver, CuAddress address);

// A descriptor of memory that was made for export; closed on exec.
Result<UniqueFd> ExportFd(const CudaDriver& driver, CuMemory memory);

}  // namespace headrace::transport
