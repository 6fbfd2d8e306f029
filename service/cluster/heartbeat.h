// Whether the other end of a connection lives: what counts are answers to one's own questions, so
// that a network that lets through one direction only is found out by both ends. Pure.
//
// The owner asks every interval_ns(), one question at a time, and calls Check when NextCheck says.
#pragma once

#include "ipc/base/check.h"
#include "ipc/base/clock.h"

namespace headrace::service {

class Heartbeat {
 public:
  Heartbeat(TimeNs detection_ns, TimeNs now)
      : detection_ns_(detection_ns), heard_ns_(now), due_ns_(now + interval_ns()) {
    HR_CHECK(interval_ns() > 0, detection_ns_);
  }

  TimeNs interval_ns() const { return detection_ns_ / 6; }
  void Answered(TimeNs now) { heard_ns_ = now; }
  TimeNs NextCheck() const { return due_ns_; }

  // False when nothing was answered for the detection time. A check that comes late shows that this
  // process stood still itself, and with it the answers that may lie unread: that time is not held
  // against the other end.
  bool Check(TimeNs now);

 private:
  TimeNs detection_ns_;
  TimeNs heard_ns_;
  TimeNs due_ns_;
};

}  // namespace headrace::service
