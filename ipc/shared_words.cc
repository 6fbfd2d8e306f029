#include "ipc/shared_words.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::ipc {
namespace {

void StoreWord(std::uint64_t* words, const std::byte* source, std::size_t index) {
  std::uint64_t word;
  std::memcpy(&word, source + index * 8, 8);
  std::atomic_ref<std::uint64_t>(words[index]).store(word, std::memory_order_relaxed);
}

void LoadWord(std::byte* target, std::uint64_t* words, std::size_t index) {
  const std::uint64_t word =
      std::atomic_ref<std::uint64_t>(words[index]).load(std::memory_order_relaxed);
  std::memcpy(target + index * 8, &word, 8);
}

bool AreWords(const void* shared, std::size_t size) {
  return reinterpret_cast<std::uintptr_t>(shared) % 8 == 0 && size % 8 == 0;
}

// Calls `copy` with 0, 1, ..., `count` - 1. Compilers leave loops over atomics as they are written,
// and rows of the board are what the service writes most: eight words for one look at the index.
template <typename Copy>
void ForEachWord(std::size_t count, Copy copy) {
  constexpr std::size_t kStride = 8;
  std::size_t index = 0;
  for (; index + kStride <= count; index += kStride) {
    [&]<std::size_t... step>(std::index_sequence<step...>) { (copy(index + step), ...); }
    (std::make_index_sequence<kStride>{});
  }
  for (; index < count; ++index) copy(index);
}

}  // namespace

void StoreWords(void* shared, const void* source, std::size_t size) {
  HR_CHECK(AreWords(shared, size), shared, size);
  auto* words = static_cast<std::uint64_t*>(shared);
  const auto* bytes = static_cast<const std::byte*>(source);
  ForEachWord(size / 8, [words, bytes](std::size_t index) { StoreWord(words, bytes, index); });
}

void LoadWords(void* target, const void* shared, std::size_t size) {
  HR_CHECK(AreWords(shared, size), shared, size);
  // atomic_ref takes no const object; the word is only loaded.
  auto* words = static_cast<std::uint64_t*>(const_cast<void*>(shared));
  auto* bytes = static_cast<std::byte*>(target);
  ForEachWord(size / 8, [words, bytes](std::size_t index) { LoadWord(bytes, words, index); });
}

}  // namespace headrace::ipc
