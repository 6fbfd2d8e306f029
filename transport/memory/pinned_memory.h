// Host memory of this process that all of its GPUs can read and write directly, until it is
// destroyed. Pinning takes long: about as long as clearing the memory does.
#pragma once

#include <cstddef>
#include <span>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "transport/memory/gpus.h"

namespace headrace::transport {

// Memory that somebody else owns, and unmaps only after this is destroyed.
class PinnedRange {
 public:
  PinnedRange() = default;
  // Whole pages. Errors: what the driver says, and how much was wanted.
  static Result<PinnedRange> Pin(const Gpus& gpus, std::span<std::byte> memory);

  // Where GPUs find it, all of them; null: nothing is pinned.
  std::byte* on_gpus() const { return on_gpus_; }

 private:
  std::byte* on_gpus_ = nullptr;
  HostRegistration registration_;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  // Zeros, rounded up to whole pages. Errors: what the system or the driver says, and how much was
  // wanted.
  static Result<PinnedMemory> Allocate(const Gpus& gpus, std::size_t size);

  std::byte* data() const { return mapping_.data(); }
  // Where GPUs find it, all of them.
  std::byte* on_gpus() const { return pinned_.on_gpus(); }
  std::size_t size() const { return mapping_.size(); }

 private:
  Mapping mapping_;
  PinnedRange pinned_;
};

}  // namespace headrace::transport
