// Memory of cuMemAlloc, as frameworks have it: only legacy handles can share it. The service
// allocates none.
#pragma once

#include <cstddef>

#include "transport/memory/cuda_handles.h"

namespace headrace::transport {

using DeviceMemory = UniqueHandle<InContextTraits<CuAddress, &CudaFunctions::mem_free>>;

inline Result<DeviceMemory> AllocateDeviceMemory(const PrimaryContext& context, std::size_t size) {
  const CudaDriver& driver = *context.get().driver;
  const CurrentContext current(driver, context.get().context);
  CuAddress address = 0;
  const CuResult result = current.result() == CuResult::kSuccess
                              ? driver.call().mem_alloc(&address, size)
                              : current.result();
  if (result != CuResult::kSuccess) return driver.Failed(result, "allocate GPU memory");
  return DeviceMemory({&driver, context.get().context, address});
}

}  // namespace headrace::transport
