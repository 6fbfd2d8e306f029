// GPU memory that the library has allocated and shares with the service.
//
// Owned by its segment and by all references of hr_segment_keep. Immutable. The destructor waits
// until the GPU has finished all work in its streams, as cudaFree does, because that work may use
// the memory.
#pragma once

#include <cstdint>
#include <memory>

#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"
#include "transport/memory/device_arena.h"

namespace headrace::client {

class GpuMemory {
 public:
  // At least `size` bytes of zeros on the GPU `device`. `driver` is shared with the session.
  static Result<std::shared_ptr<const GpuMemory>> Allocate(
      std::shared_ptr<const transport::CudaDriver> driver, transport::CuDevice device,
      std::uint64_t size);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  const transport::DeviceArena& arena() const { return arena_; }

 private:
  GpuMemory(std::shared_ptr<const transport::CudaDriver> driver, transport::PrimaryContext context,
            transport::DeviceArena arena)
      : driver_(std::move(driver)), context_(std::move(context)), arena_(std::move(arena)) {}
  Status Clear() const;

  // Shared with the session and its other memory: the driver goes with the last of them.
  const std::shared_ptr<const transport::CudaDriver> driver_;
  const transport::PrimaryContext context_;
  const transport::DeviceArena arena_;
};

}  // namespace headrace::client
