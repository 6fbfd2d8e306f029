// Limits how fast messages of one source are handled: a rate, with a burst. Messages beyond it wait
// for their turn, in their order, so that many connections of one source share its rate. Pure.
#pragma once

#include <algorithm>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"

namespace headrace::service {

class MessagePacer {
 public:
  // A wait shorter than this is not worth a timer; it is made up for by the next.
  static constexpr TimeNs kWaitMin = 5 * kMillisecond;

  MessagePacer(TimeNs per_second, TimeNs burst)
      : interval_ns_(kSecond / per_second), burst_ns_(burst * interval_ns_) {
    HR_CHECK(interval_ns_ > 0 && burst > 0, per_second, burst);
  }

  // Books what costs `cost` times as much as a small message. Returns how long to wait before it is
  // handled, 0 for not at all.
  TimeNs Book(TimeNs cost, TimeNs now) {
    HR_CHECK(cost > 0, cost);  // what cost nothing would make no source ever wait
    next_ns_ = std::max(next_ns_, now - burst_ns_) + cost * interval_ns_;
    const TimeNs wait_ns = next_ns_ - now;
    return wait_ns < kWaitMin ? 0 : wait_ns;
  }

  // Nothing that was booked matters any more.
  bool IsIdle(TimeNs now) const { return next_ns_ <= now - burst_ns_; }

 private:
  TimeNs interval_ns_;  // of messages that cost 1
  TimeNs burst_ns_;
  TimeNs next_ns_ = 0;  // when all that was booked is paid for
};

}  // namespace headrace::service
