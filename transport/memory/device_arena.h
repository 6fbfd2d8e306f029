// A piece of one GPU's memory that is made to be shared: allocated, mapped here, exportable as a
// file descriptor. Other processes may keep it after its owner is gone; the memory is freed with
// its last mapping.
#pragma once

#include <cstdint>

#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"
#include "transport/memory/device_grant.h"

namespace headrace::transport {

class DeviceArena {
 public:
  // At least `size` bytes on `device`, readable and writable by it. The contents are what the
  // driver hands out. kUnavailable where the GPU or the platform cannot export memory, with the
  // remedy.
  static Result<DeviceArena> Allocate(const CudaDriver& driver, CuDevice device,
                                      std::uint64_t size);
  DeviceArena(DeviceArena&& other) = default;
  DeviceArena& operator=(DeviceArena&& other) noexcept;

  CuAddress address() const { return mapping_.get().address; }
  std::uint64_t size() const { return mapping_.get().size; }  // rounded up
  CuDevice device() const { return device_; }

  // For another process, all of it. Each call makes a descriptor of its own.
  Result<DeviceGrant> Grant() const;

 private:
  DeviceArena(CuDevice device, const DeviceUuid& uuid) : device_(device), uuid_(uuid) {}

  CuDevice device_;
  DeviceUuid uuid_;
  VmmMemory memory_;
  Reservation reservation_;
  VmmMapping mapping_;
};

// Lets `devices` read and write mapped memory.
Status AllowAccess(const CudaDriver& driver, CuAddress address, std::uint64_t size,
                   std::span<const CuDevice> devices);

// What memory on `device` is made in multiples of, for export.
Result<std::uint64_t> GranularityOf(const CudaDriver& driver,
                                    const CuAllocationProperties& properties);
CuAllocationProperties ExportableMemoryOn(CuDevice device);

}  // namespace headrace::transport
