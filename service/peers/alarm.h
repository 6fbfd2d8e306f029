// A timer for one deadline that may move: calls back once when it has come, and not at all while
// none is set. Used on the thread of its kj loop.
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
  // `ring` is called with the time and may set the alarm again. `timer` and `tasks` must outlive
  // this.
  Alarm(kj::Timer& timer, kj::TaskSet& tasks, std::function<void(TimeNs now)> ring)
      : timer_(timer), tasks_(tasks), ring_(std::move(ring)) {}

  // Does nothing if it is set for an earlier time. kNever clears it.
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
