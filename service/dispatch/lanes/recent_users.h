// Which jobs moved something on the lane inside the node within the last second. From that a job
// knows whether others would wait behind it there.
//
// Owned by Blocks, on dispatch's thread. A job that moves nothing, because it hangs or computes for
// long, does not count, since small blocks cost time and are needed only if there are others. A job
// that has just attached counts, since it is about to move.
#pragma once

#include <array>
#include <cstdint>

#include "ipc/base/clock.h"
#include "ipc/base/ids.h"
#include "ipc/base/steering.h"

namespace headrace::service {

class RecentUsers {
 public:
  // A job that comes back after longer may wait for one whole operation: little of such a time.
  static constexpr TimeNs kRecent = kSecond;

  void Add(JobId job, std::uint32_t priority, TimeNs now) { Moves(job, priority, now); }
  void Moves(JobId job, std::uint32_t priority, TimeNs now);
  // Another job of this class, or of a higher one, moved something within kRecent.
  bool Has(JobId job, std::uint32_t priority, TimeNs now) const;

 private:
  struct Class {
    JobId last{};                 // that moved
    TimeNs last_ns = -kRecent;    // never
    TimeNs others_ns = -kRecent;  // any other one
  };
  std::array<Class, kPriorityMax + 1> classes_{};
};

}  // namespace headrace::service
