// Another process's GPU memory, mapped here for the GPUs that use it, until this object is
// destroyed.
//
// The handle is untrusted: every field is checked, and a claim that contradicts the driver's
// answers (another GPU, fewer bytes) is refused. The memory stays allocated while it is mapped
// here, also when its owner is gone; the owner of an import decides when a dead client's memory is
// released.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "transport/memory/cuda_handles.h"
#include "transport/memory/multicast.h"

namespace headrace::transport {

class DeviceImport {
 public:
  // Maps the memory for `users`, which are GPUs with a context of this process; each must reach the
  // GPU that the memory is on. A legacy handle is opened in the context of that GPU, which must be
  // one of the users then. Descriptors may be closed afterwards. Errors: kInvalidArgument for a
  // false claim, kNotFound for a GPU that is not seen here, kUnavailable where a GPU cannot reach
  // the memory or CUDA refuses a handle from a process of the same pid.
  static Result<DeviceImport> Open(const CudaDriver& driver, const DeviceHandle& handle,
                                   std::span<const UniqueFd> fds,
                                   std::span<const PrimaryContext> users);
  DeviceImport(DeviceImport&& other) = default;
  DeviceImport& operator=(DeviceImport&& other) noexcept;

  // Lets it be bound to an address with others' memory, for as long as this lives; `multicast`
  // outlives this.
  void Announce(Multicast& multicast);

  CuAddress address() const { return address_; }  // the same for all users
  std::uint64_t size() const { return size_; }
  CuDevice device() const { return device_; }  // where the memory is

 private:
  DeviceImport() = default;
  Status MapPieces(const CudaDriver& driver, const DeviceHandle& handle,
                   std::span<const UniqueFd> fds, std::span<const PrimaryContext> users);
  Status MapPiece(const CudaDriver& driver, int fd, std::uint64_t at, std::uint64_t size);
  Status OpenLegacy(const CudaDriver& driver, const DeviceHandle& handle,
                    std::span<const PrimaryContext> users);
  Status CheckOpened(const CudaDriver& driver, const PrimaryContext& home,
                     const DeviceHandle& handle) const;

  CuDevice device_ = 0;
  CuAddress address_ = 0;
  std::uint64_t size_ = 0;
  Reservation reservation_;
  std::vector<VmmMapping> pieces_;
  LegacyMapping legacy_;
  std::uint64_t piece_size_ = 0;  // 0: legacy
  MulticastRange announced_;      // goes first
};

}  // namespace headrace::transport
