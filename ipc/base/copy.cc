#include "ipc/base/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace headrace {

#if defined(__SSE2__)

namespace {

constexpr std::size_t kLine = 64;  // a store past the caches is worth it for whole cache lines only

void StreamLine(std::byte* target, const std::byte* source) {
  const auto* const from = reinterpret_cast<const __m128i*>(source);
  auto* const to = reinterpret_cast<__m128i*>(target);
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

}  // namespace

void CopyLarge(std::byte* target, const std::byte* source, std::size_t size) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(target) % kLine;
  const std::size_t head = std::min(size, (kLine - past) % kLine);
  std::memcpy(target, source, head);
  std::size_t at = head;
  for (; size - at >= kLine; at += kLine) StreamLine(target + at, source + at);
  // These stores are ordered with no others before this.
  _mm_sfence();
  std::memcpy(target + at, source + at, size - at);
}

#else

void CopyLarge(std::byte* target, const std::byte* source, std::size_t size) {
  std::memcpy(target, source, size);
}

#endif

void CopyPartOf(std::size_t whole, std::byte* target, const std::byte* source, std::size_t size) {
  if (size == 0) return;
  if (whole >= kLargeCopyMin) {
    CopyLarge(target, source, size);
  } else {
    std::memcpy(target, source, size);
  }
}

}  // namespace headrace
