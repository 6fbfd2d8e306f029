// Slots of equal size in memory of the wire, for received messages that wait to be summed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::transport {

class Staging {
 public:
  Staging() = default;
  // `memory` has room for `slots_count` slots and is not owned.
  Staging(std::span<std::byte> memory, std::size_t slot_size, std::uint32_t slots_count)
      : memory_(memory), slot_size_(slot_size) {
    HR_CHECK(memory.size() >= slot_size * slots_count, memory.size(), slot_size, slots_count);
    free_.reserve(slots_count);
    for (std::uint32_t slot = slots_count; slot > 0; --slot) {
      free_.push_back(static_cast<std::uint16_t>(slot - 1));
    }
  }

  std::span<std::byte> memory() const { return memory_; }
  std::uint16_t Acquire() {
    HR_CHECK(!free_.empty());
    const std::uint16_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Release(std::uint16_t slot) { free_.push_back(slot); }
  std::byte* At(std::uint16_t slot) const { return memory_.data() + slot * slot_size_; }

 private:
  std::span<std::byte> memory_;
  std::size_t slot_size_ = 0;
  std::vector<std::uint16_t> free_;
};

}  // namespace headrace::transport
