#include "client/lib/gpu_memory.h"

#include <utility>

namespace headrace::client {

using transport::CudaDriver;
using transport::CudaStream;
using transport::CuDevice;
using transport::CurrentContext;
using transport::DeviceArena;
using transport::PrimaryContext;

Result<std::shared_ptr<const GpuMemory>> GpuMemory::Allocate(
    std::shared_ptr<const CudaDriver> driver, CuDevice device, std::uint64_t size) {
  Result<PrimaryContext> context = transport::RetainPrimaryContext(*driver, device);
  if (!context) return context.error();
  Result<DeviceArena> arena = DeviceArena::Allocate(*driver, device, size);
  if (!arena) return arena.error();
  // The constructor is for this function only, so make_shared cannot call it.
  const std::shared_ptr<const GpuMemory> memory(
      new GpuMemory(std::move(driver), std::move(context).value(), std::move(arena).value()));
  if (Status status = memory->Clear(); !status) return status.error();
  return memory;
}

Status GpuMemory::Clear() const {
  // In a stream of its own: the caller's default stream may wait for what only comes later.
  const Result<CudaStream> stream =
      transport::CreateStream(context_, transport::kCuStreamNonBlocking, 0);
  if (!stream) return stream.error();
  const CurrentContext current(*driver_, context_.get().context);
  Status status = driver_->Check(
      driver_->call().memset_async(arena_.address(), 0, arena_.size(), stream->get().thing),
      "set GPU memory to zero");
  if (!status) return status;
  return driver_->Check(driver_->call().stream_synchronize(stream->get().thing),
                        "set GPU memory to zero");
}

GpuMemory::~GpuMemory() {
  const CurrentContext current(*driver_, context_.get().context);
  driver_->NoteRelease(driver_->call().ctx_synchronize());
}

}  // namespace headrace::client
