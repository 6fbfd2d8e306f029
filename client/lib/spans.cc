#include "client/lib/spans.h"

#include <algorithm>
#include <iterator>

#include "ipc/base/check.h"

namespace headrace::client {
namespace {

std::size_t RoundUp(std::size_t size) {
  const std::size_t mask = SpanAllocator::kAlignment - 1;
  return (size + mask) & ~mask;
}

}  // namespace

SpanAllocator::SpanAllocator(std::size_t size) : size_(size), free_size_(size) {
  HR_CHECK(size % kAlignment == 0 && size > 0, size);
  free_.emplace(0, size);
}

std::optional<std::size_t> SpanAllocator::Allocate(std::size_t size) {
  HR_CHECK(size > 0);
  if (size > free_size_) return std::nullopt;  // also keeps RoundUp from overflowing
  const std::size_t length = RoundUp(size);
  const auto fits = [length](const auto& span) { return span.second >= length; };
  const auto span = std::find_if(free_.begin(), free_.end(), fits);
  if (span == free_.end()) return std::nullopt;
  const auto [offset, available] = *span;
  free_.erase(span);
  if (available > length) free_.emplace(offset + length, available - length);
  HR_CHECK(free_size_ >= length && offset + length <= size_, free_size_, offset, length);
  free_size_ -= length;
  return offset;
}

void SpanAllocator::Free(std::size_t offset, std::size_t size) {
  std::size_t length = RoundUp(size);
  HR_CHECK(offset + length <= size_, offset, length, size_);
  free_size_ += length;
  HR_CHECK(free_size_ <= size_, free_size_, size_);
  auto next = free_.lower_bound(offset);
  HR_CHECK(next == free_.end() || offset + length <= next->first, offset, length);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    HR_CHECK(previous->first + previous->second <= offset, offset, previous->first);
    if (previous->first + previous->second == offset) {
      previous->second += length;
      return;
    }
  }
  free_.emplace(offset, length);
}

}  // namespace headrace::client
