// The GPUs that a process uses: CUDA's driver, a context on each, and each one's properties. Made
// once at the start; everything that maps, launches or pins refers to it and is destroyed before
// it.
//
// Thread-safe: nothing changes after Open; multicast() and memory_gate() guard themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ipc/base/check.h"
#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "transport/memory/cuda_device.h"
#include "transport/memory/cuda_driver.h"
#include "transport/memory/cuda_handles.h"
#include "transport/memory/device_import.h"
#include "transport/memory/memory_gate.h"
#include "transport/memory/multicast.h"
#include "transport/memory/stream_words.h"

namespace headrace::transport {

class Gpus {
 public:
  // All GPUs that the driver shows, in its order. Errors: those of CudaDriver::Open, or what a GPU
  // says to a first context.
  static Result<std::unique_ptr<Gpus>> Open(const std::string& library);

  const CudaDriver& driver() const { return *driver_; }
  std::size_t count() const { return devices_.size(); }
  // Place i of both is the GPU of ordinal i.
  const std::vector<CudaDevice>& devices() const { return devices_; }
  const std::vector<PrimaryContext>& contexts() const { return contexts_; }
  const PrimaryContext& context(CuDevice device) const {
    HR_CHECK(static_cast<std::size_t>(device) < contexts_.size(), device);
    return contexts_[static_cast<std::size_t>(device)];
  }

  // Where imported memory can be bound to one address; nothing is until somebody starts it.
  Multicast& multicast() const { return *multicast_; }

  // Between what is launched and what is mapped on these GPUs.
  MemoryGate& memory_gate() const { return *memory_gate_; }

  // As CudaDriver::OnBroken, with the GPU that it is about, where the call names one.
  void OnBroken(CudaDriver::OnBrokenContext report);

  // Maps another process's memory for its GPU and all others here that reach it.
  Result<DeviceImport> Import(const DeviceHandle& handle, std::span<const UniqueFd> fds) const;

 private:
  explicit Gpus(std::unique_ptr<CudaDriver> driver) : driver_(std::move(driver)) {}

  std::unique_ptr<CudaDriver> driver_;
  std::vector<CudaDevice> devices_;
  std::vector<PrimaryContext> contexts_;
  std::unique_ptr<MemoryGate> memory_gate_ = std::make_unique<MemoryGate>();
  std::unique_ptr<Multicast> multicast_;
};

}  // namespace headrace::transport
