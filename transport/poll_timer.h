// When a lane polls GPUs, which cannot wake a thread: continuously for a short time after a post or
// an end, since small transfers end within that; then every few tens of microseconds while
// something is open. The lane's thread sleeps in between, and as long as nothing is open.
//
// A value; one thread.
#pragma once

#include "ipc/base/clock.h"

namespace headrace::transport {

class PollTimer {
 public:
  static constexpr TimeNs kSpinFor = 50 * kMicrosecond;
  static constexpr TimeNs kLookEvery = 30 * kMicrosecond;

  // Something was posted: look at once.
  void PollNow(TimeNs now) {
    last_ns_ = now;
    next_ns_ = now;
  }

  // At the end of each look: whether to look again at once. `worked`: something was given to a GPU
  // or taken from one.
  bool OnPolled(bool open, bool worked, TimeNs now) {
    if (worked) last_ns_ = now;
    const bool spins = open && now - last_ns_ < kSpinFor;
    next_ns_ = !open ? kNever : spins ? now : now + kLookEvery;
    return spins;
  }

  // When to look next; kNever while nothing is open.
  TimeNs next_ns() const { return next_ns_; }

 private:
  TimeNs last_ns_ = 0;
  TimeNs next_ns_ = kNever;
};

}  // namespace headrace::transport
