#include "transport/memory/device_grant.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "transport/memory/cuda_device.h"
#include "transport/memory/cuda_handles.h"

namespace headrace::transport {
namespace {

constexpr std::string_view kRemedy =
    "let headrace allocate the gradients, or use PyTorch's native allocator "
    "without expandable segments";

// The driver tells of addresses only to a thread with a current context. Where this one has none,
// the primary context of a GPU that this process uses is current for as long as this lives; on no
// GPU is one made for it.
class SomeContext {
 public:
  explicit SomeContext(const CudaDriver& driver) {
    CuContext current = nullptr;
    if (driver.call().ctx_get_current(&current) == CuResult::kSuccess && current != nullptr) return;
    for (CuDevice device = 0; device < driver.devices_count(); ++device) {
      unsigned flags = 0;
      int active = 0;
      const CuResult asked = driver.call().primary_get_state(device, &flags, &active);
      if (asked != CuResult::kSuccess || active == 0) continue;
      auto context = RetainPrimaryContext(driver, device);
      if (!context) continue;
      context_ = std::move(*context);
      current_.emplace(driver, context_.get().context);
      return;
    }
  }

 private:
  PrimaryContext context_;
  std::optional<CurrentContext> current_;  // goes first
};

// What the driver knows about an address. An attribute that it does not know counts as 0.
template <typename Value>
Value AttributeOf(const CudaDriver& driver, CuPointerAttribute attribute, CuAddress address) {
  Value value{};
  const CuResult result = driver.call().pointer_get_attribute(&value, attribute, address);
  return result == CuResult::kSuccess ? value : Value{};
}

Error Refused(CuAddress address, std::string_view reason) {
  return Error(Code::kInvalidArgument,
               fmt::format("memory at {:#x} cannot be shared: {}; {}", address, reason, kRemedy));
}

Status CheckIsDeviceMemory(const CudaDriver& driver, CuAddress address) {
  std::uint32_t type = 0;
  const CuResult result =
      driver.call().pointer_get_attribute(&type, CuPointerAttribute::kMemoryType, address);
  // The other: no GPU of this process has a context, so nothing is known of any address.
  if (result == CuResult::kInvalidValue || result == CuResult::kInvalidContext) {
    return Refused(address, "CUDA does not know it (host memory, or already freed)");
  }
  if (result != CuResult::kSuccess) return driver.Failed(result, "ask what an address is");
  if (AttributeOf<std::uint32_t>(driver, CuPointerAttribute::kIsManaged, address) != 0) {
    return Refused(address, "it is managed memory");
  }
  if (type != kCuMemoryTypeDevice) return Refused(address, "it is host memory");
  return {};
}

Result<DeviceGrant> GrantLegacy(const CudaDriver& driver, DeviceGrant grant, CuAddress address) {
  CuAddress base = 0;
  std::size_t range = 0;
  CuIpcHandle handle{};
  auto done = driver.Check(driver.call().mem_get_address_range(&base, &range, address),
                           "ask which allocation an address lies in");
  if (!done) return done.error();
  grant.handle.offset = address - base;
  if (grant.handle.size > range - grant.handle.offset) {
    return Refused(address, fmt::format("{} bytes reach over the end of its allocation of {}",
                                        grant.handle.size, range));
  }
  done = driver.Check(driver.call().ipc_get_mem_handle(&handle, base), "make a CUDA IPC handle");
  if (!done) return done.error();
  grant.handle.kind = DeviceHandleKind::kLegacyIpc;
  std::ranges::copy(handle.bytes, grant.handle.legacy.begin());
  return grant;
}

Result<UniqueFd> ExportMappedAt(const CudaDriver& driver, CuAddress address) {
  CuMemory memory = 0;
  const CuResult result =
      driver.call().mem_retain(&memory, reinterpret_cast<void*>(address));  // NOLINT
  if (result != CuResult::kSuccess) return driver.Failed(result, "find the memory at an address");
  const VmmMemory retained({&driver, memory});
  return ExportFd(driver, memory);
}

Result<DeviceGrant> GrantPieces(const CudaDriver& driver, DeviceGrant grant, CuAddress address) {
  const auto base_of = [&](CuAddress at) {
    return AttributeOf<CuAddress>(driver, CuPointerAttribute::kMappingBase, at);
  };
  const auto size_of = [&](CuAddress at) {
    return AttributeOf<std::size_t>(driver, CuPointerAttribute::kMappingSize, at);
  };
  const CuAddress base = base_of(address);
  const std::size_t piece_size = size_of(address);
  if (base == 0 || piece_size == 0) return Refused(address, "nothing is mapped there");
  grant.handle.kind = DeviceHandleKind::kPosixFds;
  grant.handle.offset = address - base;
  grant.handle.piece_size = piece_size;
  const std::uint64_t reach = grant.handle.offset + grant.handle.size;
  if ((reach - 1) / piece_size + 1 > kDevicePiecesMax) {
    return Refused(address, fmt::format("it consists of more than {} pieces", kDevicePiecesMax));
  }
  for (std::uint64_t at = 0; at < reach; at += piece_size) {
    if (base_of(base + at) != base + at || size_of(base + at) != piece_size) {
      return Refused(address, "its pieces differ in size or have gaps");
    }
    auto fd = ExportMappedAt(driver, base + at);
    if (!fd) return fd.error();
    grant.fds.push_back(std::move(*fd));
  }
  return grant;
}

}  // namespace

Result<UniqueFd> ExportFd(const CudaDriver& driver, CuMemory memory) {
  int number = -1;
  const CuResult result = driver.call().mem_export(&number, memory, CuHandleType::kPosixFd, 0);
  if (result != CuResult::kSuccess) {
    return driver.Failed(result, "export GPU memory as a file descriptor");
  }
  UniqueFd fd(number);
  if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return SystemError("close an exported descriptor on exec", errno);
  }
  return fd;
}

Result<DeviceAllocation> AllocationAt(const CudaDriver& driver, CuAddress address) {
  const SomeContext asking(driver);
  if (auto done = CheckIsDeviceMemory(driver, address); !done) return done.error();
  DeviceAllocation found;
  found.device = AttributeOf<int>(driver, CuPointerAttribute::kDeviceOrdinal, address);
  found.number = AttributeOf<std::uint64_t>(driver, CuPointerAttribute::kBufferId, address);
  if (AttributeOf<int>(driver, CuPointerAttribute::kIsLegacyIpcCapable, address) == 0) {
    found.base = AttributeOf<CuAddress>(driver, CuPointerAttribute::kMappingBase, address);
    found.size = AttributeOf<std::size_t>(driver, CuPointerAttribute::kMappingSize, address);
    if (found.size != 0) return found;
  }
  std::size_t size = 0;
  const auto asked = driver.Check(driver.call().mem_get_address_range(&found.base, &size, address),
                                  "ask which allocation an address lies in");
  if (!asked) return asked.error();
  found.size = size;
  return found;
}

Result<DeviceGrant> GrantExisting(const CudaDriver& driver, CuAddress address, std::uint64_t size) {
  if (size == 0 || size > kDeviceMemorySizeMax) {
    return Error(Code::kInvalidArgument, fmt::format("cannot share {} bytes", size));
  }
  const SomeContext asking(driver);
  if (auto done = CheckIsDeviceMemory(driver, address); !done) return done.error();
  const auto ordinal = AttributeOf<int>(driver, CuPointerAttribute::kDeviceOrdinal, address);
  const auto device = DescribeDevice(driver, ordinal);
  if (!device) return device.error();
  // CUDA IPC handles are made in the context of the memory's own GPU.
  const auto home = RetainPrimaryContext(driver, ordinal);
  if (!home) return home.error();
  const CurrentContext current(driver, home->get().context);
  if (current.result() != CuResult::kSuccess) {
    return driver.Failed(current.result(), fmt::format("use the context of GPU {}", ordinal));
  }
  DeviceGrant grant;
  grant.device = ordinal;
  grant.handle.exporter_pid = static_cast<std::uint32_t>(::getpid());
  grant.handle.device = device->uuid;
  grant.handle.size = size;
  if (AttributeOf<int>(driver, CuPointerAttribute::kIsLegacyIpcCapable, address) != 0) {
    return GrantLegacy(driver, std::move(grant), address);
  }
  const auto types =
      AttributeOf<std::uint64_t>(driver, CuPointerAttribute::kAllowedHandleTypes, address);
  if ((types & static_cast<std::uint64_t>(CuHandleType::kPosixFd)) != 0) {
    return GrantPieces(driver, std::move(grant), address);
  }
  return Refused(address, "it was allocated without leave to export it");
}

}  // namespace headrace::transport
