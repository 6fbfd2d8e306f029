// Calls back when a deadline that may move has come: once for each SetFor that counts, or not at
// all while there is none. The thread of its kj loop.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "ipc/base/clock.h"

namespace headrace::service {

class Alarm {
 public:
  // `ring` gets the time; it may set the alarm again. `timer` and `tasks` outlive this.
  Alarm(kj::Timer& timer, kj::TaskSet& tasks, std::function<void(TimeNs now)> ring)
      : timer_(timer), tasks_(tasks), ring_(std::move(ring)) {}

  // Nothing when it is set for an earlier time; kNever sets it for none.
  void SetFor(TimeNs due_ns) {
    if (due_ns >= due_ns_) return;
    due_ns_ = due_ns;
    const TimeNs wait_ns = std::max<TimeNs>(0, due_ns - MonotonicNow());
    tasks_.add(timer_.afterDelay(wait_ns * kj::NANOSECONDS).then([this, due_ns] {
      if (due_ns != due_ns_) return;  // an earlier one came between
      due_ns_ = kNever;
      ring_(MonotonicNow());
    }));
  }

 private:
  kj::Timer& timer_;
  kj::TaskSet& tasks_;
  std::function<void(TimeNs)> ring_;
  TimeNs due_ns_ = kNever;
};

}  // namespace headrace::service
