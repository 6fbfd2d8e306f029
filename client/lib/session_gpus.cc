#include "client/lib/session_gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace headrace::client {
namespace {

using transport::CuContext;
using transport::CudaDriver;
using transport::CuResult;
using transport::PrimaryContext;

// Between two looks at streams that have still to pass; only when a session is closed.
constexpr std::chrono::milliseconds kLookEvery(1);

}  // namespace

Result<std::shared_ptr<const CudaDriver>> SessionGpus::Driver() {
  const std::lock_guard lock(mutex_);
  return DriverLocked();
}

Result<std::shared_ptr<const CudaDriver>> SessionGpus::DriverLocked() {
  if (driver_ != nullptr) return driver_;
  Result<std::unique_ptr<CudaDriver>> opened = CudaDriver::Open(library_);
  if (!opened) return opened.error();
  driver_ = std::move(opened).value();
  return driver_;
}

Status SessionGpus::CheckDevice(int device) {
  const std::lock_guard lock(mutex_);
  const auto driver = DriverLocked();
  if (!driver) return driver.error();
  const int count = (*driver)->devices_count();
  if (device >= 0 && device < count) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("GPU {}: this process sees {}, numbered from 0", device, count));
}

Result<PrimaryContext*> SessionGpus::ContextLocked(int device) {
  Gpu& gpu = gpus_[device];
  if (!gpu.context) {
    Result<PrimaryContext> context = transport::RetainPrimaryContext(*driver_, device);
    if (!context) return context.error();
    gpu.context = std::move(context).value();
  }
  return &gpu.context;
}

Result<transport::DeviceGrant> SessionGpus::Grant(transport::CuAddress address,
                                                  std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  const auto driver = DriverLocked();
  if (!driver) return driver.error();
  return transport::GrantExisting(*driver_, address, size);
}

Result<transport::DeviceAllocation> SessionGpus::AllocationAt(transport::CuAddress address) {
  const std::lock_guard lock(mutex_);
  const auto driver = DriverLocked();
  if (!driver) return driver.error();
  return transport::AllocationAt(*driver_, address);
}

Status SessionGpus::NoteMemoryOn(int device) {
  const std::lock_guard lock(mutex_);
  const Result<PrimaryContext*> context = ContextLocked(device);
  if (!context) return context.error();
  if (first_ < 0) first_ = device;
  return {};
}

Result<GpuWords*> SessionGpus::WordsOf(int device, transport::CuStream stream) {
  const std::lock_guard lock(mutex_);
  return WordsLocked(device, stream);
}

Result<GpuWords*> SessionGpus::WordsLocked(int device, transport::CuStream stream) {
  const Result<PrimaryContext*> context = ContextLocked(device);
  if (!context) return context.error();
  Gpu& gpu = gpus_[device];
  if (gpu.words == nullptr) {
    if (Status checked = GpuWords::CheckNotCaptured(**context, stream); !checked) {
      return checked.error();
    }
    Result<std::unique_ptr<GpuWords>> words = GpuWords::Pin(**context, *channel_);
    if (!words) return words.error().Within(fmt::format("let streams of GPU {} wait", device));
    gpu.words = std::move(words).value();
  }
  return gpu.words.get();
}

Result<GpuWords*> SessionGpus::WordsForWaits(transport::CuStream stream) {
  const std::lock_guard lock(mutex_);
  if (first_ < 0) {
    return Error(
        Code::kInvalidArgument,
        "this session has no memory on a GPU, so there is nothing that a stream could wait "
        "for: call hr_wait");
  }
  CuContext current = nullptr;
  // Without a current context there is none: the first GPU is meant.
  if (driver_->call().ctx_get_current(&current) == CuResult::kSuccess && current != nullptr) {
    for (const auto& [device, gpu] : gpus_) {
      if (gpu.context.get().context == current) return WordsLocked(device, stream);
    }
  }
  return WordsLocked(first_, stream);
}

bool SessionGpus::HasWords() {
  const std::lock_guard lock(mutex_);
  return std::any_of(gpus_.begin(), gpus_.end(),
                     [](const auto& each) { return each.second.words != nullptr; });
}

void SessionGpus::AwaitLocked(GpuWords& words, TimeNs deadline) {
  while (!words.HavePassed() && MonotonicNow() < deadline) std::this_thread::sleep_for(kLookEvery);
}

void SessionGpus::AwaitStreams(TimeNs timeout_ns) {
  const std::lock_guard lock(mutex_);
  const TimeNs deadline = MonotonicNow() + timeout_ns;
  for (auto& [device, gpu] : gpus_) {
    if (gpu.words != nullptr) AwaitLocked(*gpu.words, deadline);
  }
}

void SessionGpus::LetStreamsPass(TimeNs timeout_ns) {
  const std::lock_guard lock(mutex_);
  const TimeNs deadline = MonotonicNow() + timeout_ns;
  for (auto& [device, gpu] : gpus_) {
    if (gpu.words == nullptr) continue;
    AwaitLocked(*gpu.words, deadline);
    if (!gpu.words->HavePassed()) {
      GpuWords::Abandon(std::move(gpu.words));
      // With its last use the context would end, and what is pinned in it.
      [[maybe_unused]] const auto kept = gpu.context.release();
    }
    gpu.words.reset();
  }
}

void SessionGpus::Renew(ipc::ChannelLayout& channel) {
  const std::lock_guard lock(mutex_);
  channel_ = &channel;
}

}  // namespace headrace::client
