// Finds operations and blocks that wait longer than they should, and reports once which rank all
// others wait for. It asks lanes between nodes which nodes their stages wait for, so that the board
// can show it long before.
//
// Owned by dispatch, on dispatch's thread. It checks open operations by a timer, a few times a
// second at most and only while something is open, so it costs nothing on the path of a block. Only
// reports allocate.
#pragma once

#include <cstdint>
#include <string>

#include "service/actor/outgoing.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/lanes/lanes.h"
#include "service/dispatch/observe/events.h"
#include "service/dispatch/observe/record.h"
#include "service/peers/messages.h"
#include "service/watch/board_writer.h"
#include "service/watch/messages.h"

namespace headrace::service {

class StragglerMonitor {
 public:
  // A lane between nodes is asked about what it has had for longer than this, but not more often.
  static constexpr TimeNs kAskAfter = 100 * kMillisecond;
  static constexpr TimeNs kAskAgain = 300 * kMillisecond;
  // People hear of that many waits of one job in a row, and of one more each minute.
  static constexpr std::uint32_t kLogTokensMax = 8;
  static constexpr TimeNs kLogTokenEvery = 60 * kSecond;

  StragglerMonitor(Lanes& lanes, BoardWriter& board, Outgoing<PeersMessage>& peers,
                   JobEvents& events)
      : lanes_(lanes), board_(board), peers_(peers), events_(events) {}

  // What waits longer is reported; 0: nothing is, but lanes are asked all the same. Before the
  // first work.
  void SetBound(TimeNs bound_ns) { bound_ns_ = bound_ns; }

  // After each turn in which something happened: what was reported may have gone on.
  void Follow(const Jobs& jobs, TimeNs now);
  // At next_check(), or later; before that it does nothing. Returns whether it was due.
  bool Check(const Jobs& jobs, TimeNs now);
  // The service stood still: waits so far are not late.
  static void Postpone(const Jobs& jobs, TimeNs now);
  TimeNs next_check() const { return next_check_; }

 private:
  // What waits in that place; number 0: nothing, or nothing that could be late.
  static LateWait Find(const Job& job, LatePlace place);
  static LateWait FindHead(const Job& job);
  // Whether the reported wait is still that.
  static bool StillWaits(const Job& job, LatePlace place, const LateWait& wait);
  void FollowJob(const Job& job, TimeNs now);
  // When what waits since then is late.
  TimeNs LateAt(TimeNs since_ns) const { return bound_ns_ == 0 ? kNever : since_ns + bound_ns_; }
  // Returns when to look at the job again.
  TimeNs CheckJob(const Job& job, TimeNs now);
  void Ask(const Job& job, TimeNs now);
  void Report(const Job& job, LatePlace place, const LateWait& wait, TimeNs now);
  static bool MayLog(StragglerState& state, TimeNs now);

  Lanes& lanes_;
  BoardWriter& board_;
  Outgoing<PeersMessage>& peers_;
  JobEvents& events_;
  TimeNs bound_ns_ = 0;
  TimeNs next_check_ = kNever;
};

}  // namespace headrace::service
