// Shared mappings like the service's: one per member, page aligned, faulted in before the clock
// starts.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::transport {

class MappedMembers {
 public:
  MappedMembers(std::size_t members_count, std::size_t size) : size_(size) {
    for (std::size_t i = 0; i < members_count; ++i) {
      void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      HR_CHECK(memory != MAP_FAILED, size);
      std::memset(memory, 0, size);  // zeros stay zeros however often they are summed
      bytes_.push_back(static_cast<std::byte*>(memory));
      floats_.push_back(static_cast<float*>(memory));
    }
  }
  ~MappedMembers() {
    for (std::byte* memory : bytes_) munmap(memory, size_);
  }
  MappedMembers(const MappedMembers&) = delete;
  MappedMembers& operator=(const MappedMembers&) = delete;

  const std::vector<std::byte*>& bytes() const { return bytes_; }
  float* const* floats() const { return floats_.data(); }

 private:
  std::size_t size_;
  std::vector<std::byte*> bytes_;
  std::vector<float*> floats_;
};

}  // namespace headrace::transport
