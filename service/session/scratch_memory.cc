#include "service/session/scratch_memory.h"

#include <fmt/format.h>

#include <vector>

#include "ipc/base/check.h"

namespace headrace::service {

Result<ScratchMemory> ScratchMemory::OnHost(std::size_t size) {
  Result<transport::PinnedMemory> pinned = transport::PinnedMemory::Reserve(size);
  if (!pinned) return pinned.error();
  return ScratchMemory(std::move(pinned).value());
}

Result<ScratchMemory> ScratchMemory::OnGpu(const transport::Gpus& gpus, transport::CuDevice device,
                                           std::size_t size) {
  const transport::CudaDriver& driver = gpus.driver();
  std::vector<transport::CuDevice> others;
  for (const transport::CudaDevice& each : gpus.devices()) {
    if (each.ordinal == device) continue;
    const Result<bool> reaches = transport::CanAccessPeer(driver, each.ordinal, device);
    if (!reaches) return reaches.error();
    if (!*reaches) {
      return Error(Code::kUnavailable,
                   fmt::format("GPU {} has no direct path to GPU {}", each.ordinal, device));
    }
    others.push_back(each.ordinal);
  }
  HR_CHECK(others.size() + 1 == gpus.count(), device, others.size(), gpus.count());
  Result<transport::DeviceArena> arena = transport::DeviceArena::Allocate(driver, device, size);
  if (!arena) return arena.error();
  HR_CHECK(arena->size() >= size, arena->size(), size);
  const Status allowed = transport::AllowAccess(driver, arena->address(), arena->size(), others);
  if (!allowed) return allowed.error();
  return ScratchMemory(std::move(arena).value());
}

}  // namespace headrace::service
