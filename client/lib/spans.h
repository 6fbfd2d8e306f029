// First-fit allocation of byte spans in one registered segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace headrace::client {

// Not thread-safe. Holds no memory itself: it hands out offsets.
class SpanAllocator {
 public:
  // A cache line: arrays do not share one, and vector loads are aligned.
  static constexpr std::size_t kAlignment = 64;

  explicit SpanAllocator(std::size_t size);

  // Offset of a span of at least `size` bytes (at least 1), or nothing when none is long enough.
  std::optional<std::size_t> Allocate(std::size_t size);
  // Gives back a span; `offset` and `size` as they were taken.
  void Free(std::size_t offset, std::size_t size);

  bool IsWhole() const { return free_size_ == size_; }  // nothing is taken
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::size_t free_size_;
  std::map<std::size_t, std::size_t> free_;  // offset -> length; neighbours are always merged
};

}  // namespace headrace::client
