// Puts in force what people ask of jobs, where an iteration begins: the part that the way of
// gradients (plan_flow.h) and that of operations (flow.h) have in common. What reaches further, the
// end of a pause and a drain, is the flow's: steering.cc, drain.cc.
//
// Owned by the flow, on dispatch's thread.
#pragma once

#include <cstdint>
#include <string>

#include "service/actor/messages.h"
#include "service/actor/outgoing.h"
#include "service/dispatch/blocks.h"
#include "service/dispatch/job.h"

namespace headrace::service {

class Steersman {
 public:
  Steersman(Blocks& blocks, Outgoing<WatchMessage>& watch) : blocks_(blocks), watch_(watch) {}

  // Keeps the wish until the border, or, where the job stands at one, puts it in force.
  void Wish(Job& job, const Steering& steering, TimeNs now);
  // An iteration is about to begin, or the operation of that number is about to open.
  void AtBorder(Job& job, std::uint64_t next_operation, TimeNs now) {
    if (job.steering.any_waiting) Apply(job, next_operation, now);
  }

  // The job ends, and its settings with it: if its ranks may come back, people have to set them
  // again, and are told so.
  void TellLostSettings(const Job& job);

  // For people, who want to know what became of a wish: these are not counted against the events
  // that a job may cause.
  void Tell(const Job& job, std::string text);

  // The first operation that nobody has posted.
  static std::uint64_t NextOperation(const Job& job);

 private:
  void Apply(Job& job, std::uint64_t next_operation, TimeNs now);

  Blocks& blocks_;
  Outgoing<WatchMessage>& watch_;
};

// "uid 1000 on node b"
std::string AskedBy(const Steering& steering);

// What posts beyond the end of a drained job end with; the end is known.
Failure DrainedFailure(const Job& job);

}  // namespace headrace::service
