// Round-trip time to the peer of a connection and the offset of its clock, measured by the pings of
// the heartbeat. Pure.
//
// Each answer has the peer's clock, read at some time between ping and answer, so that a shorter
// round trip gives a more exact offset. The shortest of the last few counts; older ones would hide
// that clocks drift.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"

namespace headrace::service {

struct RoundTrip {
  TimeNs taken_ns = -1;  // -1: not measured yet
  TimeNs offset_ns = 0;  // peer's clock minus ours, exact to half of taken_ns
};

class RoundTrips {
 public:
  static constexpr std::size_t kKept = 8;

  // The ping was sent at `asked_unix_ns` by our clock and answered after `taken_ns` with the time
  // of the peer's clock. IsClock must hold for both times.
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

  // Whether it is a plausible time: between 1970 and 2200, so that no difference overflows.
  static bool IsClock(std::int64_t unix_ns) {
    return unix_ns >= 0 && unix_ns < kSecond * 3600 * 24 * 366 * 230;
  }

 private:
  std::array<RoundTrip, kKept> kept_{};
  std::size_t added_ = 0;
};

}  // namespace headrace::service
