#include "transport/memory/device_arena.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "ipc/base/check.h"
#include "transport/memory/cuda_device.h"

namespace headrace::transport {
namespace {

Status CheckCanExport(const CudaDevice& device) {
  if (device.virtual_memory && device.posix_fds) return {};
  return Error(Code::kUnavailable,
               fmt::format("GPU {} ({}) cannot export memory as file descriptors: share memory of "
                           "cudaMalloc by CUDA IPC handles instead",
                           device.ordinal, device.name));
}

}  // namespace

CuAllocationProperties ExportableMemoryOn(CuDevice device) {
  CuAllocationProperties properties;
  properties.handle_types = CuHandleType::kPosixFd;
  properties.location = {CuLocationType::kDevice, device};
  return properties;
}

Result<std::uint64_t> GranularityOf(const CudaDriver& driver,
                                    const CuAllocationProperties& properties) {
  std::size_t granularity = 0;
  const CuResult result =
      driver.call().mem_get_granularity(&granularity, &properties, CuGranularity::kMinimum);
  if (result != CuResult::kSuccess) return driver.Failed(result, "ask for the granularity");
  if (granularity == 0) return Error(Code::kInternal, "CUDA's granularity is 0");
  return std::uint64_t{granularity};
}

Status AllowAccess(const CudaDriver& driver, CuAddress address, std::uint64_t size,
                   std::span<const CuDevice> devices) {
  for (const CuDevice device : devices) {
    const CuAccessDescription access{{CuLocationType::kDevice, device}, CuAccess::kReadWrite};
    const CuResult result = driver.call().mem_set_access(address, size, &access, 1);
    if (result != CuResult::kSuccess) {
      return driver.Failed(result, fmt::format("let GPU {} access {} bytes", device, size));
    }
  }
  return {};
}

Result<DeviceArena> DeviceArena::Allocate(const CudaDriver& driver, CuDevice device,
                                          std::uint64_t size) {
  if (size == 0 || size > kDeviceMemorySizeMax) {
    return Error(Code::kInvalidArgument, fmt::format("an arena cannot have {} bytes", size));
  }
  const auto described = DescribeDevice(driver, device);
  if (!described) return described.error();
  if (auto done = CheckCanExport(*described); !done) return done.error();
  CuAllocationProperties properties = ExportableMemoryOn(device);
  // So that a network card may read and write it, where it can.
  properties.gpu_direct_rdma_capable = described->rdma ? 1 : 0;
  const auto granularity = GranularityOf(driver, properties);
  if (!granularity) return granularity.error();
  const std::uint64_t rounded = (size + *granularity - 1) / *granularity * *granularity;

  DeviceArena arena(device, described->uuid);
  CuMemory memory = 0;
  const CuResult made = driver.call().mem_create(&memory, rounded, &properties, 0);
  if (made != CuResult::kSuccess) {
    return driver.Failed(made, fmt::format("allocate {} bytes on GPU {}", rounded, device));
  }
  arena.memory_ = VmmMemory({&driver, memory});
  auto reservation = ReserveAddresses(driver, rounded);
  if (!reservation) return reservation.error();
  arena.reservation_ = std::move(*reservation);
  auto mapping = MapMemory(arena.memory_, arena.reservation_.get().address, rounded);
  if (!mapping) return mapping.error();
  arena.mapping_ = std::move(*mapping);
  const CuDevice own[] = {device};
  if (auto done = AllowAccess(driver, arena.address(), rounded, own); !done) return done.error();
  HR_CHECK(arena.size() == rounded && rounded >= size, arena.size(), rounded, size);
  return arena;
}

// What it held goes in the order in which it would be destroyed: an address is given back only once
// nothing is mapped there.
DeviceArena& DeviceArena::operator=(DeviceArena&& other) noexcept {
  if (this == &other) return *this;
  mapping_ = std::move(other.mapping_);
  reservation_ = std::move(other.reservation_);
  memory_ = std::move(other.memory_);
  device_ = other.device_;
  uuid_ = other.uuid_;
  return *this;
}

Result<DeviceGrant> DeviceArena::Grant() const {
  HR_CHECK(mapping_ && memory_, device_);
  auto fd = ExportFd(*memory_.get().driver, memory_.get().memory);
  if (!fd) return fd.error();
  DeviceGrant grant;
  grant.handle.kind = DeviceHandleKind::kPosixFds;
  grant.handle.exporter_pid = static_cast<std::uint32_t>(::getpid());
  grant.handle.device = uuid_;
  grant.handle.size = size();
  grant.handle.piece_size = size();
  grant.fds.push_back(std::move(*fd));
  grant.device = device_;
  return grant;
}

}  // namespace headrace::transport
