// Detects that the peer at the other end of a connection is lost. Only answers to this end's own
// pings count, so that both ends detect a network that passes one direction only. Pure.
//
// The owner sends a ping every interval_ns(), one at a time, and calls Check at NextCheck.
#pragma once

#include <optional>

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

  // Returns false if no ping was answered for the detection time. If Check is called late, this
  // process was stopped and answers may be unread, so that time does not count.
  bool Check(TimeNs now);
  // Whether no ping was answered for half of that time, as of the last Check: another way to the
  // peer should be looked for.
  bool IsQuiet(TimeNs now) const { return now - heard_ns_ >= detection_ns_ / 2; }
  TimeNs heard_ns() const { return heard_ns_; }
  // Whether this process was stopped until a moment ago, and for the detection time: the peer has
  // given this end up.
  bool WasStopped(TimeNs now) const {
    return now - due_ns_ >= detection_ns_ || (woke_ns_ && now - *woke_ns_ < interval_ns());
  }

 private:
  TimeNs detection_ns_;
  TimeNs heard_ns_;
  TimeNs due_ns_;
  std::optional<TimeNs> woke_ns_;  // when it had been stopped for the detection time
};

}  // namespace headrace::service
