// How far the other end of a connection is, and how its clock stands to ours, by the answers to the
// questions of a pulse. Pure.
//
// Each answer says what its clock showed; that was at some time between question and answer, so
// the shorter the round trip the more it says. The shortest of the last few counts: an older one
// would hide that clocks drift apart.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"

namespace headrace::service {

struct RoundTrip {
  TimeNs taken_ns = -1;  // -1: there has been none
  TimeNs offset_ns = 0;  // their clock less ours, within half of taken_ns
};

class RoundTrips {
 public:
  static constexpr std::size_t kKept = 8;

  // Asked when our clock showed `asked_unix_ns`; the answer took `taken_ns` and says what the
  // other's showed. Both are clocks by IsClock.
  void Add(std::int64_t asked_unix_ns, TimeNs taken_ns, std::int64_t theirs_unix_ns) {
    HR_CHECK(taken_ns >= 0 && IsClock(theirs_unix_ns), taken_ns, theirs_unix_ns);
    kept_[added_++ % kKept] = {.taken_ns = taken_ns,
                               .offset_ns = theirs_unix_ns - (asked_unix_ns + taken_ns / 2)};
  }

  // The shortest of the last kKept.
  RoundTrip Best() const {
    const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(std::min(added_, kKept));
    const auto best = std::min_element(kept_.begin(), end, [](const auto& one, const auto& other) {
      return one.taken_ns < other.taken_ns;
    });
    return best == end ? RoundTrip{} : *best;
  }

  // Whether a clock may show that: a time since 1970 and before 2200, so no difference overflows.
  static bool IsClock(std::int64_t unix_ns) {
    return unix_ns >= 0 && unix_ns < kSecond * 3600 * 24 * 366 * 230;
  }

 private:
  std::array<RoundTrip, kKept> kept_{};
  std::size_t added_ = 0;
};

}  // namespace headrace::service
