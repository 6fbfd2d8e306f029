// For how long a lane between nodes has moved bytes or summed them: its busy time.
//
// Seen is that the wire has moved something, at each call of DoWork. The time since it last did so
// counts, with two limits: while the wire has messages that it can move by itself, kStuckAfter of
// the pacer, since a wire that moved nothing for longer is held up by its peer; else, where only
// other nodes may send something, kArrivalGap, beyond which nothing was on its way. So a lane whose
// transfers wait for a slow peer is not busy, whoever sends and however the messages travel.
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
