// Sleeping instead of computing: where the computation would be by now.
//
// The due time is kept, not the time of the last sleep, so that many short computations in a row
// cost no more than one long one, and a sleep that ends late makes the next one shorter.
#pragma once

#include <algorithm>
#include <optional>

#include "ipc/base/clock.h"

namespace headrace::replay {

// Pure; one thread.
class Pace {
 public:
  // A computation that ends sooner than this is not slept for but counted to the next: waking up
  // takes about as long.
  static constexpr TimeNs kSlack = 100 * kMicrosecond;

  void Start(TimeNs now) { due_ns_ = now; }
  void Compute(TimeNs time_ns) { due_ns_ += time_ns; }
  // The computation stood still until `now`.
  void StandStillUntil(TimeNs now) { due_ns_ = std::max(due_ns_, now); }

  TimeNs due_ns() const { return due_ns_; }
  // Until when to sleep before what comes after the computation; nothing where it is near enough.
  std::optional<TimeNs> SleepUntil(TimeNs now) const {
    if (due_ns_ - now <= kSlack) return std::nullopt;
    return due_ns_;
  }

 private:
  TimeNs due_ns_ = 0;
};

// Sleeps until `deadline` of CLOCK_MONOTONIC, at once when it has passed.
void SleepUntil(TimeNs deadline);
// Makes the calling thread wake when its sleeps end, not up to 50 us later.
void WakeOnTime();

// How long a computation takes in one iteration of one rank: `time_ns` times 1 - jitter to
// 1 + jitter, evenly distributed, the same from run to run. `pass` tells the passes apart.
TimeNs Jittered(TimeNs time_ns, double jitter, std::uint64_t seed, std::uint32_t rank,
                std::uint64_t iteration, std::uint32_t pass, std::uint64_t tensor);

}  // namespace headrace::replay
