// Keeps two things apart on the GPUs of a process: collectives between nodes, whose kernels wait on
// their GPU until all other nodes have launched theirs, and calls of the driver that make, map, pin
// or free memory. Such a call may wait for the kernels of its GPU and hold up launches meanwhile.
// Then two nodes that have launched different collectives first, and have such a call each, would
// wait for each other: neither call returns before its kernel ends, and neither kernel before the
// other node has launched its own.
//
// So calls are made while no such collective is under way, and none is launched while they are
// made. A caller waits for that moment and holds nothing up meanwhile: if its node launched nothing
// while it waits, the other node's kernel could wait for just that. It waits for kPatience at most,
// since a collective lasts until the slowest rank has come, and that rank may wait for the very
// memory that is to be mapped. After that it calls anyway, and so do later callers until the GPUs
// were free of collectives once. If that deadlocks, on a driver of that kind, the operations'
// timeout ends it.
//
// Thread-safe; a Caller belongs to one thread. Nothing here waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "ipc/base/clock.h"

namespace headrace::transport {

class MemoryGate {
 public:
  static constexpr TimeNs kPatience = 500 * kMillisecond;
  // When to look again, for whoever is refused.
  static constexpr TimeNs kLookEvery = kMillisecond;

  // A collective is about to be launched. False: calls are being made; again later.
  bool TryBeginCollective();
  // Its kernel has ended.
  void EndCollective();

  // Somebody who makes calls.
  class Caller {
   public:
    explicit Caller(MemoryGate& gate) : gate_(gate) {}
    ~Caller() { End(); }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

    // True: make the calls, and then End. False: again after kLookEvery.
    bool TryBegin(TimeNs now);
    // The calls have been made, or are not wanted any more.
    void End();

   private:
    MemoryGate& gate_;
    bool alone_ = false;                       // no collective begins before End
    TimeNs since_ns_ = kNever;                 // that it waits
    std::optional<std::uint32_t> gave_up_at_;  // the count of free moments then
  };

 private:
  // Collectives under way, and callers that are alone in units of kCaller: never both.
  static constexpr std::uint32_t kCaller = 1U << 16;
  bool TryBeginCalls();

  std::atomic<std::uint32_t> state_ = 0;
  std::atomic<std::uint32_t> free_moments_ = 0;  // times that the last collective ended
};

}  // namespace headrace::transport
