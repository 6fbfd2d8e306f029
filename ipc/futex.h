// Sleeping on a word of shared memory, across processes.
#pragma once

#include <atomic>
#include <cstdint>

#include "ipc/base/clock.h"

namespace headrace::ipc {

// Sleeps while *word == expected, until woken or `timeout_ns` has passed (kNever: no limit).
// May return early; the caller looks at its condition again.
void FutexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, TimeNs timeout_ns);
void FutexWakeAll(const std::atomic<std::uint32_t>& word);

// The low half of a 64-bit word, which the kernel compares. A completion word's low half comes back
// to an old value only after 64 uses of its slot, and its waiters look again once a second.
inline const std::atomic<std::uint32_t>& LowHalf(const std::atomic<std::uint64_t>& word) {
  return *reinterpret_cast<const std::atomic<std::uint32_t>*>(&word);
}

}  // namespace headrace::ipc
