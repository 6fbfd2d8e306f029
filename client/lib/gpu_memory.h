// A piece of a GPU's memory that the library allocated for sharing.
//
// Owned by its segment and by everybody who keeps it past that (hr_segment_keep). Immutable. Its
// end waits until the GPU has done all that stands in its streams, as cudaFree does: what still
// runs may use the memory.
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
