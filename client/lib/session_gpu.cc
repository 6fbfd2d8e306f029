// Segments on GPUs: the part of Session that knows of CUDA's memory.
#include <fmt/format.h>

#include <utility>

#include "client/lib/session.h"

namespace headrace::client {

using transport::CudaDriver;
using transport::DeviceGrant;

Result<hr_segment*> Session::CreateDeviceSegment(std::size_t size, int device) {
  if (size == 0 || size > kDeviceMemorySizeMax) {
    return Error(Code::kInvalidArgument, fmt::format("segment of {} bytes: 1 to {} are possible",
                                                     size, kDeviceMemorySizeMax));
  }
  if (Status status = gpus_.CheckDevice(device); !status) return status.error();
  Result<std::shared_ptr<const CudaDriver>> driver = gpus_.Driver();
  if (!driver) return driver.error();
  auto memory = GpuMemory::Allocate(std::move(driver).value(), device, size);
  if (!memory) return memory.error();
  if (Status status = gpus_.NoteMemoryOn(device); !status) return status.error();
  const Result<DeviceGrant> grant = (*memory)->arena().Grant();
  if (!grant) return grant.error();
  const Result<std::uint32_t> id = control_->RegisterDeviceSegment(grant->handle, grant->fds);
  if (!id) return id.error();
  const transport::DeviceArena& arena = (*memory)->arena();
  auto segment = std::make_unique<hr_segment>();
  segment->id = *id;
  segment->device = device;
  segment->address = reinterpret_cast<std::byte*>(arena.address());  // NOLINT: of the GPU
  segment->size = arena.size();
  segment->gpu_memory = std::move(memory).value();
  return Own(std::move(segment));
}

Result<hr_segment*> Session::ShareDeviceSegment(void* address, std::size_t size) {
  const auto grant = gpus_.Grant(reinterpret_cast<transport::CuAddress>(address), size);  // NOLINT
  if (!grant) return grant.error();
  if (Status status = gpus_.NoteMemoryOn(grant->device); !status) return status.error();
  const Result<std::uint32_t> id = control_->RegisterDeviceSegment(grant->handle, grant->fds);
  if (!id) return id.error();
  auto segment = std::make_unique<hr_segment>();
  segment->id = *id;
  segment->device = grant->device;
  segment->address = static_cast<std::byte*>(address);
  segment->size = size;
  return Own(std::move(segment));
}

Result<hr_allocation> Session::AllocationAt(const void* address) {
  const auto found = gpus_.AllocationAt(reinterpret_cast<transport::CuAddress>(address));
  if (!found) return found.error();
  return hr_allocation{.base = reinterpret_cast<void*>(found->base),  // NOLINT: of the GPU
                       .size = found->size,
                       .number = found->number,
                       .device = found->device};
}

}  // namespace headrace::client
