#include "tests/support/counted_new.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace headrace::support {

bool counting = false;
std::uint64_t allocations = 0;

}  // namespace headrace::support

namespace {

using headrace::support::allocations;
using headrace::support::counting;

void* Allocate(std::size_t size, std::size_t alignment) {
  allocations += counting ? 1 : 0;
  // aligned_alloc wants a size that is a multiple of the alignment.
  void* const memory =
      std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
