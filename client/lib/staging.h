// Registered memory into which one-off arrays are copied.
//
// Thread-safe. Grows by a segment (one round trip) when no span is free, and releases unused
// segments when it grows, so that it has about the largest amount that was in flight at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>

#include "client/lib/control.h"
#include "client/lib/spans.h"
#include "ipc/base/result.h"
#include "ipc/sealed_memory.h"

namespace headrace::client {

class Staging {
 public:
  // The least a segment holds: small arrays then share one.
  static constexpr std::size_t kSegmentSizeMin = std::size_t{1} << 20;

  // A piece of staging memory; given back with Give, or gone with the Staging.
  struct Allocation {
    std::uint32_t segment = 0;
    std::size_t offset = 0;  // in the segment
    std::size_t size = 0;
    std::byte* data = nullptr;
  };

  explicit Staging(Control& control) : control_(control) {}

  // `size` at least 1. Errors: kExhausted, or what the service says to a new segment.
  Result<Allocation> Allocate(std::size_t size);
  void Free(const Allocation& span);

  std::size_t size() const;  // bytes in all segments

 private:
  struct Segment {
    std::uint32_t id;
    ipc::SealedMemory memory;
    SpanAllocator spans;
  };

  // Both under mutex_.
  bool TryAllocate(std::size_t size, Allocation& span);
  std::list<Segment> RemoveUnused();

  Status Grow(std::size_t size);

  Control& control_;
  std::mutex growing_;  // one round trip at a time; taken before mutex_
  mutable std::mutex mutex_;
  std::list<Segment> segments_;  // guarded by mutex_
};

}  // namespace headrace::client
