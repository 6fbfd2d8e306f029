// Host memory of this process that all of its GPUs can read and write directly, until it is
// destroyed. Pinning takes long: about as long as clearing the memory does.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"
#include "transport/memory/gpus.h"

namespace headrace::transport {

// Memory that somebody else owns, and unmaps only after this is destroyed. It may be pinned part by
// part: kernels of GPUs find it in one piece, but a copy must not reach over two parts.
class PinnedRange {
 public:
  PinnedRange() = default;
  // Whole pages. Errors: what the driver says, and how much was wanted.
  static Result<PinnedRange> Pin(const Gpus& gpus, std::span<std::byte> memory);

  // Pins whole pages, behind those that are pinned. Errors: as Pin's; what was pinned before stays.
  Status Append(const Gpus& gpus, std::span<std::byte> memory);
  // Unpins what was appended last. True when nothing is left.
  bool UnpinEnd();

  // Where GPUs find it, all of them; null: nothing is pinned.
  std::byte* on_gpus() const { return parts_.empty() ? nullptr : parts_.front().on_gpus; }
  std::size_t size() const;

 private:
  struct Part {
    std::byte* on_gpus = nullptr;
    std::size_t size = 0;
    HostRegistration registration{};
  };
  std::vector<Part> parts_;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  // Zeros, rounded up to whole pages. Errors: what the system or the driver says, and how much was
  // wanted.
  static Result<PinnedMemory> Allocate(const Gpus& gpus, std::size_t size);
  // The same part by part: memory of which nothing is pinned, to whose pinned bytes PinMore adds up
  // to `most`, whole pages, and returns whether that is all.
  static Result<PinnedMemory> Reserve(std::size_t size);
  Result<bool> PinMore(const Gpus& gpus, std::size_t most);
  // Unpins what was pinned last, and unmaps it. True when nothing is left.
  bool ReleaseEnd();

  std::byte* data() const { return mapping_.data(); }
  // Where GPUs find it, all of them.
  std::byte* on_gpus() const { return pinned_.on_gpus(); }
  std::size_t size() const { return mapping_.size(); }

 private:
  Mapping mapping_;
  PinnedRange pinned_;
};

}  // namespace headrace::transport
