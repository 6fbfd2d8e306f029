// Measures the busy time of a lane between nodes: the time in which it moved or summed bytes.
//
// Each call of DoWork shows whether the wire has moved bytes. The time since it last did so counts
// as busy, up to a limit. While the wire has messages to send, the limit is kStuckAfter of the
// pacer: a wire that moves nothing for longer is held up by its peer. Otherwise, when only other
// nodes may send, the limit is kArrivalGap: after a longer gap nothing was in flight. So a lane
// that waits for a slow peer is not busy.
//
// Pure: time comes in as an argument.
#pragma once

#include <algorithm>

#include "ipc/base/clock.h"
#include "transport/exchange/send_pacer.h"

namespace headrace::transport {

class FlowMeter {
 public:
  // Packets of one message follow each other within it at 12 Mbit/s and more.
  static constexpr TimeNs kArrivalGap = kMillisecond;

  // At the beginning of a DoWork: whether anything was moved or summed since the one before.
  void OnWorkBegins(TimeNs now, bool moved) {
    if (!moved) return;
    const TimeNs gap = now - moved_ns_;
    if (can_move_) {
      flowed_ns_ += std::min(gap, SendPacer::kStuckAfter);
    } else if (gap <= kArrivalGap) {
      flowed_ns_ += gap;
    }
    moved_ns_ = now;
  }

  // At its end: whether something is left that moves without another node's doing.
  void OnWorkEnds(TimeNs now, bool can_move) {
    if (can_move && !can_move_) moved_ns_ = now;  // it has waited for nothing so far
    can_move_ = can_move;
  }

  TimeNs flowed_ns() const { return flowed_ns_; }

 private:
  TimeNs moved_ns_ = 0;
  TimeNs flowed_ns_ = 0;
  bool can_move_ = false;
};

}  // namespace headrace::transport
