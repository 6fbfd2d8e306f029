// Copies of memory that are too large for caches.
#pragma once

#include <cstddef>

namespace headrace {

// From that size of a whole array on its copies go past the caches (CopyLarge). What is copied of
// it by one process is read by another, or once more by this one, and then lies in memory anyway: a
// store past the caches spares reading what it overwrites, a third of the traffic. The C library
// does the same from a size that it takes from the processor's third-level cache; in virtual
// machines that is often the one of the whole socket, or several of them, and of no use.
inline constexpr std::size_t kLargeCopyMin = std::size_t{2} << 20;

// As std::memcpy. What is written is in memory, for any reader that learns of it as usual.
void CopyLarge(std::byte* target, const std::byte* source, std::size_t size);

// Either, for `size` bytes of an array of `whole` bytes.
void CopyPartOf(std::size_t whole, std::byte* target, const std::byte* source, std::size_t size);

}  // namespace headrace
