// Detects from the times of dispatch's turns that its thread stood still: the service was stopped
// (SIGSTOP, a debugger, a frozen cgroup), or its machine was suspended. Clients and lanes may have
// stood still as well, and dispatch could not see what they did, so that time does not count
// against open work.
//
// Pure: time comes in as an argument.
#pragma once

#include "ipc/base/clock.h"

namespace headrace::service {

class Standstill {
 public:
  // A turn that comes that much later than it was due; a busy machine delays one by less.
  static constexpr TimeNs kLeast = 250 * kMillisecond;

  // A turn begins. Returns by how much the deadlines of what is open move; 0: it came in time.
  // What was open gets back all the time that it had left at the last turn. But where every turn
  // comes late, only the delay itself, so that operations end there too.
  TimeNs BeginTurn(TimeNs now);
  // It has ended.
  void EndTurn(TimeNs now) { turned_ns_ = now; }
  // The next one is due then at the latest, or kNever.
  void Await(TimeNs due_ns) { due_ns_ = due_ns; }
  // When the last turn was.
  TimeNs turned_ns() const { return turned_ns_; }

 private:
  TimeNs turned_ns_ = 0;
  TimeNs due_ns_ = kNever;
  bool in_time_ = true;  // the last turn that was waited for
};

}  // namespace headrace::service
