// Memory of this service through which blocks of GPUs pass on their way to other nodes and back: a
// GPU's, or the host's, pinned for all GPUs. All GPUs of the node find it at the same address.
//
// Moved from owner to owner, and used by one of them at a time. Making and destroying it may take
// long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include "ipc/base/result.h"
#include "transport/memory/device_arena.h"
#include "transport/memory/gpus.h"
#include "transport/memory/pinned_memory.h"
#include "transport/transport.h"

namespace headrace::service {

class ScratchMemory {
 public:
  ScratchMemory() = default;

  // The host's, of which nothing is pinned yet. Errors: what the system says, and how much was
  // wanted.
  static Result<ScratchMemory> OnHost(std::size_t size);
  // Pins up to `most` bytes more of it, whole pages; whether that is all. Errors: what the driver
  // says.
  Result<bool> PinMore(const transport::Gpus& gpus, std::size_t most) {
    return std::get<transport::PinnedMemory>(memory_).PinMore(gpus, most);
  }
  // kUnavailable where another of the GPUs has no direct path to this one; else what the driver
  // says, and how much was wanted.
  static Result<ScratchMemory> OnGpu(const transport::Gpus& gpus, transport::CuDevice device,
                                     std::size_t size);

  // Gives back what was pinned last; a GPU's memory goes whole. True when nothing is left.
  bool ReleaseEnd() {
    auto* const pinned = std::get_if<transport::PinnedMemory>(&memory_);
    if (pinned != nullptr) return pinned->ReleaseEnd();
    memory_ = transport::PinnedMemory();
    return true;
  }

  std::byte* on_gpus() const {
    const auto* arena = std::get_if<transport::DeviceArena>(&memory_);
    // The driver's addresses are integers of a pointer's size.
    if (arena != nullptr) return reinterpret_cast<std::byte*>(arena->address());
    return std::get<transport::PinnedMemory>(memory_).on_gpus();
  }
  // Where this processor finds it; null: it is a GPU's.
  std::byte* on_host() const {
    const auto* pinned = std::get_if<transport::PinnedMemory>(&memory_);
    return pinned != nullptr ? pinned->data() : nullptr;
  }
  std::size_t size() const {
    const auto* arena = std::get_if<transport::DeviceArena>(&memory_);
    if (arena != nullptr) return static_cast<std::size_t>(arena->size());
    return std::get<transport::PinnedMemory>(memory_).size();
  }
  // The GPU's ordinal, or transport::kHost.
  std::int8_t device() const {
    const auto* arena = std::get_if<transport::DeviceArena>(&memory_);
    return arena != nullptr ? static_cast<std::int8_t>(arena->device()) : transport::kHost;
  }

 private:
  explicit ScratchMemory(transport::PinnedMemory memory) : memory_(std::move(memory)) {}
  explicit ScratchMemory(transport::DeviceArena memory) : memory_(std::move(memory)) {}

  std::variant<transport::PinnedMemory, transport::DeviceArena> memory_;
};

}  // namespace headrace::service
