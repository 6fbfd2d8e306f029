// Rate limit: an event may happen a fixed number of times in a time window. Pure.
#pragma once

#include "ipc/base/check.h"
#include "ipc/base/clock.h"

namespace headrace::service {

class Allowance {
 public:
  Allowance(int times_max, TimeNs window_ns) : times_max_(times_max), window_ns_(window_ns) {}

  // Whether the event may happen at `now`; counts it if so.
  bool TryAcquire(TimeNs now) {
    if (times_ == 0 || now - since_ns_ >= window_ns_) {
      since_ns_ = now;
      times_ = 0;
    }
    if (times_ >= times_max_) return false;
    ++times_;
    HR_CHECK(times_ <= times_max_, times_, times_max_);
    return true;
  }

 private:
  int times_max_;
  TimeNs window_ns_;
  TimeNs since_ns_ = 0;
  int times_ = 0;  // in this window
};

}  // namespace headrace::service
