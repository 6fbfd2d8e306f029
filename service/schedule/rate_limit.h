// A rate limit in bytes per second, exact in the long run. Plain data and rules; time is an
// argument.
//
// It counts in time: bytes are worth their time at that rate. A job that owes time waits until it
// has passed; a job that owes none may send a stage of any size, and then owes its time. So the
// next stages wait until the average is right again.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ipc/base/clock.h"

namespace headrace::schedule {

class RateLimit {
 public:
  // Time in which nothing was sent is made up for, but for no longer than this.
  static constexpr double kSavedMaxNs = 20.0 * kMillisecond;

  // 0: no limit. What is owed stays owed, in bytes.
  void Set(std::uint64_t bytes_per_s, TimeNs now) {
    if (bytes_per_s == bytes_per_s_) return;
    Pass(now);
    saved_ns_ *= static_cast<double>(bytes_per_s_) /
                 static_cast<double>(std::max<std::uint64_t>(bytes_per_s, 1));
    saved_ns_ = bytes_per_s == 0 ? 0 : std::min(saved_ns_, kSavedMaxNs);
    bytes_per_s_ = bytes_per_s;
  }
  std::uint64_t bytes_per_s() const { return bytes_per_s_; }

  // From then on the next bytes may go.
  TimeNs ReadyAt() const {
    if (bytes_per_s_ == 0 || saved_ns_ >= 0) return 0;
    return at_ns_ + static_cast<TimeNs>(std::ceil(-saved_ns_));
  }
  void Consume(std::uint64_t bytes, TimeNs now) {
    if (bytes_per_s_ == 0) return;
    Pass(now);
    saved_ns_ -= static_cast<double>(bytes) * kSecond / static_cast<double>(bytes_per_s_);
  }

 private:
  void Pass(TimeNs now) {
    saved_ns_ = std::min(kSavedMaxNs, saved_ns_ + static_cast<double>(now - at_ns_));
    at_ns_ = now;
  }

  std::uint64_t bytes_per_s_ = 0;
  TimeNs at_ns_ = 0;
  double saved_ns_ = 0;  // at at_ns_; less than 0: owed
};

}  // namespace headrace::schedule
