// Memory that can be taken away: from Protect on, whoever touches it ends the process.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>

#include "ipc/base/check.h"

namespace headrace::transport {

class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t size)
      : size_(size),
        memory_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    HR_CHECK(memory_ != MAP_FAILED, size, errno);
  }
  ~GuardedMemory() { ::munmap(memory_, size_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  // Stands for unmapping it, without the address going to somebody else.
  void Protect() { HR_CHECK(::mprotect(memory_, size_, PROT_NONE) == 0, errno); }

 private:
  std::size_t size_;
  void* memory_;
};

}  // namespace headrace::transport
