// How many events one uid may cause in a while, so that a client that attaches and leaves in a loop
// neither floods the log nor drives others' events from the board. Pure: time comes in as an
// argument.
//
// Failures are counted separately: a user who attached many ranks still sees why one is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/clock.h"
#include "service/cluster/allowance.h"

namespace headrace::service {

inline constexpr int kEventsPerUidMax = 64;  // of failures, and as many of the rest
inline constexpr TimeNs kEventsWindow = 60 * kSecond;
// Uids beyond these share what one uid may.
inline constexpr std::size_t kEventUidsMax = 256;

class EventLimits {
 public:
  // Whether one more event that `uid` caused may be shown at `now`; otherwise it is counted.
  bool Allow(std::uint32_t uid, bool is_failure, TimeNs now);

  // One sentence for each uid of which events were left out in a window that is over at `now`.
  std::vector<std::string> EndWindows(TimeNs now);
  // When the next of these is due; kNever while nothing was left out.
  TimeNs next_deadline() const;

 private:
  using Key = std::pair<std::uint32_t, bool>;  // uid, whether failures
  struct Window {
    Allowance allowance{kEventsPerUidMax, kEventsWindow};
    TimeNs end_ns = 0;
    std::uint64_t left_out = 0;
  };

  std::map<Key, Window> windows_;
};

}  // namespace headrace::service
