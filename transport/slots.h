// Records that do not move while in use, and are reused: after warm-up nothing is allocated. An id
// names a record and one use of it, so that an outdated id finds nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "ipc/base/check.h"

namespace headrace::transport {

template <typename Record>
class Slots {
 public:
  static constexpr std::uint32_t kSlotsMax = 1U << 18;
  static constexpr std::uint32_t kUsesMax = 1U << 14;  // of one slot, then they begin again

  // The id of a record, which is as its last use left it. Never 0.
  std::uint32_t Acquire() {
    if (free_.empty()) {
      HR_CHECK(slots_.size() < kSlotsMax, slots_.size());
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    HR_CHECK(!slots_[index].taken, index);
    slots_[index].taken = true;
    return slots_[index].use * kSlotsMax + index;
  }

  void Release(std::uint32_t id) {
    Slot& slot = slots_[id % kSlotsMax];
    HR_CHECK(Find(id) != nullptr, id);
    slot.taken = false;
    slot.use = slot.use + 1 == kUsesMax ? 1 : slot.use + 1;
    free_.push_back(id % kSlotsMax);
  }

  // Null when that use has ended.
  Record* Find(std::uint32_t id) {
    const std::uint32_t index = id % kSlotsMax;
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.taken && slot.use == id / kSlotsMax ? &slot.record : nullptr;
  }
  const Record* Find(std::uint32_t id) const {
    const std::uint32_t index = id % kSlotsMax;
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    return slot.taken && slot.use == id / kSlotsMax ? &slot.record : nullptr;
  }

  // That of an id whose use has not ended.
  Record& At(std::uint32_t id) {
    Record* const found = Find(id);
    HR_CHECK(found != nullptr, id);
    return *found;
  }
  const Record& At(std::uint32_t id) const {
    const Record* const found = Find(id);
    HR_CHECK(found != nullptr, id);
    return *found;
  }

  // Calls `see(id, record)` for each record in use; it may give that one back.
  template <typename See>
  void ForEach(See see) {
    for (std::uint32_t index = 0; index < slots_.size(); ++index) {
      Slot& slot = slots_[index];
      if (slot.taken) see(slot.use * kSlotsMax + index, slot.record);
    }
  }

  template <typename See>
  void ForEach(See see) const {
    for (std::uint32_t index = 0; index < slots_.size(); ++index) {
      const Slot& slot = slots_[index];
      if (slot.taken) see(slot.use * kSlotsMax + index, slot.record);
    }
  }

  std::size_t taken_count() const { return slots_.size() - free_.size(); }

 private:
  struct Slot {
    Record record{};
    std::uint32_t use = 1;
    bool taken = false;
  };

  std::deque<Slot> slots_;  // grows without moving what is there
  std::vector<std::uint32_t> free_;
};

}  // namespace headrace::transport
