#include "transport/memory/device_import.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ipc/base/check.h"
#include "transport/memory/cuda_device.h"
#include "transport/memory/device_arena.h"

namespace headrace::transport {
namespace {

Error False(const std::string& claim) {
  return Error(Code::kInvalidArgument, "a handle of GPU memory " + claim);
}

// What can be checked without asking the driver.
Status CheckClaim(const DeviceHandle& handle, std::size_t fds_count) {
  if (handle.size == 0 || handle.size > kDeviceMemorySizeMax ||
      handle.offset > kDeviceMemorySizeMax) {
    return False(fmt::format("names {} bytes from offset {}", handle.size, handle.offset));
  }
  switch (handle.kind) {
    case DeviceHandleKind::kPosixFds: {
      if (handle.piece_size == 0 || handle.piece_size > kDeviceMemorySizeMax) {
        return False(fmt::format("has pieces of {} bytes", handle.piece_size));
      }
      const std::uint64_t pieces = (handle.offset + handle.size - 1) / handle.piece_size + 1;
      if (pieces > kDevicePiecesMax) {
        return False(fmt::format("has {} pieces, {} are the most", pieces, kDevicePiecesMax));
      }
      if (pieces != fds_count) {
        return False(fmt::format("has {} pieces and {} descriptors", pieces, fds_count));
      }
      return {};
    }
    case DeviceHandleKind::kLegacyIpc:
      if (handle.piece_size != 0 || fds_count != 0) {
        return False("is a CUDA IPC handle and has descriptors");
      }
      return {};
  }
  return False(fmt::format("is of the unknown kind {}", static_cast<unsigned>(handle.kind)));
}

Status CheckUsersReach(const CudaDriver& driver, CuDevice device,
                       std::span<const PrimaryContext> users) {
  for (const PrimaryContext& user : users) {
    const auto reaches = CanAccessPeer(driver, user.get().device, device);
    if (!reaches) return reaches.error();
    if (*reaches) continue;
    return Error(Code::kUnavailable,
                 fmt::format("GPU {} cannot access memory of GPU {}: there is no direct path "
                             "between them (nvidia-smi topo -p2p r shows why)",
                             user.get().device, device));
  }
  return {};
}

// Legacy memory has no access of its own: a context reaches all memory of a peer context or none.
// Whether that covers memory that the peer has itself opened is said nowhere, so each user's GPU is
// asked: a kernel that touched what its GPU may not would break the context for good.
Status CheckAccess(const CudaDriver& driver, CuDevice device, CuAddress address) {
  std::uint32_t flags = 0;
  auto done = driver.Check(
      driver.call().pointer_get_attribute(&flags, CuPointerAttribute::kAccessFlags, address),
      fmt::format("ask whether GPU {} may access imported memory", device));
  if (!done) return done;
  constexpr auto kNeeded = static_cast<std::uint32_t>(CuAccess::kReadWrite);
  if ((flags & kNeeded) == kNeeded) return {};
  return Error(
      Code::kUnavailable,
      fmt::format("GPU {} may not write memory that a CUDA IPC handle brought here (access "
                  "flags {}): share it by descriptors, as headrace's own gradients and "
                  "PyTorch's expandable segments are",
                  device, flags));
}

Status LetReach(const CudaDriver& driver, const PrimaryContext& home,
                std::span<const PrimaryContext> users, CuAddress address) {
  for (const PrimaryContext& user : users) {
    const CuDevice device = user.get().device;
    const CurrentContext current(driver, user.get().context);
    CuResult result = current.result();
    if (result == CuResult::kSuccess && device != home.get().device) {
      result = driver.call().ctx_enable_peer_access(home.get().context, 0);
    }
    if (result != CuResult::kSuccess && result != CuResult::kPeerAccessAlreadyEnabled) {
      return driver.Failed(
          result, fmt::format("let GPU {} access memory of GPU {}", device, home.get().device));
    }
    if (auto done = CheckAccess(driver, device, address); !done) return done;
  }
  return {};
}

}  // namespace

Result<DeviceImport> DeviceImport::Open(const CudaDriver& driver, const DeviceHandle& handle,
                                        std::span<const UniqueFd> fds,
                                        std::span<const PrimaryContext> users) {
  if (auto done = CheckClaim(handle, fds.size()); !done) return done.error();
  const auto device = FindDevice(driver, handle.device);
  if (!device) return device.error();
  if (auto done = CheckUsersReach(driver, *device, users); !done) return done.error();
  DeviceImport import;
  import.device_ = *device;
  import.size_ = handle.size;
  import.piece_size_ = handle.piece_size;
  auto done = handle.kind == DeviceHandleKind::kPosixFds
                  ? import.MapPieces(driver, handle, fds, users)
                  : import.OpenLegacy(driver, handle, users);
  if (!done) return done.error();
  return import;
}

// What it held goes in the order in which it would be destroyed: an address is given back only once
// nothing is mapped there.
DeviceImport& DeviceImport::operator=(DeviceImport&& other) noexcept {
  if (this == &other) return *this;
  announced_ = std::move(other.announced_);
  legacy_ = std::move(other.legacy_);
  pieces_ = std::move(other.pieces_);
  reservation_ = std::move(other.reservation_);
  device_ = other.device_;
  address_ = other.address_;
  size_ = other.size_;
  piece_size_ = other.piece_size_;
  return *this;
}

void DeviceImport::Announce(Multicast& multicast) {
  HR_CHECK(address_ != 0 && !announced_, address_);
  const AddressRange& mapped = reservation_.get();
  const CuAddress base = piece_size_ != 0 ? mapped.address : address_;
  multicast.Add(device_, base, piece_size_ != 0 ? mapped.size : size_, piece_size_);
  announced_ = MulticastRange({&multicast, base});
}

Status DeviceImport::MapPieces(const CudaDriver& driver, const DeviceHandle& handle,
                               std::span<const UniqueFd> fds,
                               std::span<const PrimaryContext> users) {
  const auto granularity = GranularityOf(driver, ExportableMemoryOn(device_));
  if (!granularity) return granularity.error();
  if (handle.piece_size % *granularity != 0) {
    return False(fmt::format("has pieces of {} bytes, which GPU {} maps in multiples of {}",
                             handle.piece_size, device_, *granularity));
  }
  const std::uint64_t size = handle.piece_size * fds.size();
  HR_CHECK(handle.offset < size && handle.size <= size - handle.offset, handle.offset, handle.size,
           size);
  auto reservation = ReserveAddresses(driver, size);
  if (!reservation) return reservation.error();
  reservation_ = std::move(*reservation);
  pieces_.reserve(fds.size());
  for (std::size_t i = 0; i < fds.size(); ++i) {
    auto done = MapPiece(driver, fds[i].get(), i * handle.piece_size, handle.piece_size);
    if (!done) return done.error().Within(fmt::format("piece {} of {}", i, fds.size()));
  }
  std::vector<CuDevice> devices;
  for (const PrimaryContext& user : users) devices.push_back(user.get().device);
  if (auto done = AllowAccess(driver, reservation_.get().address, size, devices); !done) {
    return done;
  }
  address_ = reservation_.get().address + handle.offset;
  HR_CHECK(pieces_.size() == fds.size() && handle.offset + handle.size <= size, handle.offset,
           handle.size);
  return {};
}

Status DeviceImport::MapPiece(const CudaDriver& driver, int fd, std::uint64_t at,
                              std::uint64_t size) {
  CuMemory imported = 0;
  // The driver takes the descriptor's number in place of an address.
  const CuResult result = driver.call().mem_import(
      &imported, reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd)), CuHandleType::kPosixFd);
  if (result != CuResult::kSuccess) {
    return driver.Failed(result, "import GPU memory from a file descriptor");
  }
  // The mapping keeps the memory; this count on it goes at the end.
  const VmmMemory memory({&driver, imported});
  CuAllocationProperties properties;
  auto done = driver.Check(driver.call().mem_get_properties(&properties, imported),
                           "ask where imported memory is");
  if (!done) return done;
  if (properties.location.type != CuLocationType::kDevice || properties.location.id != device_) {
    return False(fmt::format("says GPU {} of memory that is elsewhere", device_));
  }
  // A claim of more bytes than there are ends here: the driver maps no more than it has.
  auto mapping = MapMemory(memory, reservation_.get().address + at, size);
  if (!mapping) return mapping.error();
  pieces_.push_back(std::move(*mapping));
  return {};
}

Status DeviceImport::OpenLegacy(const CudaDriver& driver, const DeviceHandle& handle,
                                std::span<const PrimaryContext> users) {
  if (handle.exporter_pid == static_cast<std::uint32_t>(::getpid())) {
    return Error(Code::kUnavailable,
                 fmt::format("CUDA opens no IPC handle of a process whose pid is its own, and both "
                             "are {}: let the containers share one pid namespace "
                             "(shareProcessNamespace: true), or share memory by descriptors",
                             handle.exporter_pid));
  }
  const auto home = std::ranges::find_if(
      users, [this](const PrimaryContext& user) { return user.get().device == device_; });
  if (home == users.end()) {
    return Error(Code::kUnavailable,
                 fmt::format("a CUDA IPC handle of GPU {} needs a context on it", device_));
  }
  CuIpcHandle bytes{};
  std::ranges::copy(handle.legacy, bytes.bytes.begin());
  auto opened = OpenLegacyHandle(*home, bytes);
  if (!opened) return opened.error();
  legacy_ = std::move(*opened);
  auto done = CheckOpened(driver, *home, handle);
  if (!done) return done;
  address_ = legacy_.get().thing + handle.offset;
  return LetReach(driver, *home, users, address_);
}

// What the handle brought here against what its sender claims.
Status DeviceImport::CheckOpened(const CudaDriver& driver, const PrimaryContext& home,
                                 const DeviceHandle& handle) const {
  const CuAddress base = legacy_.get().thing;
  const CurrentContext current(driver, home.get().context);
  auto done = driver.Check(current.result(), "use the context of imported memory");
  if (!done) return done;
  int ordinal = -1;
  done = driver.Check(
      driver.call().pointer_get_attribute(&ordinal, CuPointerAttribute::kDeviceOrdinal, base),
      "ask where imported memory is");
  if (!done) return done;
  if (ordinal != device_)
    return False(fmt::format("says GPU {} of memory on {}", device_, ordinal));
  CuAddress start = 0;
  std::size_t range = 0;
  done = driver.Check(driver.call().mem_get_address_range(&start, &range, base),
                      "ask how large imported memory is");
  if (!done) return done;
  // A handle brings the whole block that an allocation lies in, so the range may begin before it.
  const std::uint64_t behind = start + range - base;
  if (handle.offset > behind || handle.size > behind - handle.offset) {
    return False(fmt::format("names {} bytes from offset {} of memory of {} bytes", handle.size,
                             handle.offset, behind));
  }
  return {};
}

}  // namespace headrace::transport
