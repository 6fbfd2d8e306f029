#include "ipc/shared_words.h"

#include <atomic>
#include <cstdint>
#include <cstring>

namespace headrace::ipc {

void StoreWords(void* shared, const void* source, std::size_t size) {
  auto* words = static_cast<std::uint64_t*>(shared);
  for (std::size_t i = 0; i < size / 8; ++i) {
    std::uint64_t word;
    std::memcpy(&word, static_cast<const std::byte*>(source) + i * 8, 8);
    std::atomic_ref<std::uint64_t>(words[i]).store(word, std::memory_order_relaxed);
  }
}

void LoadWords(void* target, const void* shared, std::size_t size) {
  // atomic_ref takes no const object; the word is only loaded.
  auto* words = static_cast<std::uint64_t*>(const_cast<void*>(shared));
  for (std::size_t i = 0; i < size / 8; ++i) {
    const std::uint64_t word =
        std::atomic_ref<std::uint64_t>(words[i]).load(std::memory_order_relaxed);
    std::memcpy(static_cast<std::byte*>(target) + i * 8, &word, 8);
  }
}

}  // namespace headrace::ipc
