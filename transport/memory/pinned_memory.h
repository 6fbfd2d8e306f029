// Host memory of this process that all of its GPUs can read and write directly, until it is
// destroyed. Pinning takes long: about as long as clearing the memory does.
#pragma once

#include <cstddef>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "transport/memory/gpus.h"

namespace headrace::transport {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  // Zeros, rounded up to whole pages. Errors: what the system or the driver says, and how much was
  // wanted.
  static Result<PinnedMemory> Allocate(const Gpus& gpus, std::size_t size);

  std::byte* data() const { return mapping_.data(); }
  // Where GPUs find it, all of them.
  std::byte* on_gpus() const { return on_gpus_; }
  std::size_t size() const { return mapping_.size(); }

 private:
  Mapping mapping_;
  std::byte* on_gpus_ = nullptr;
  HostRegistration registration_;
};

}  // namespace headrace::transport
