// Changes of a job's settings that users request: weight, priority, limit, the class of sends, and
// a pause. Each is kept until an iteration, or an operation of a job that does not train, is about
// to begin, and holds from there on. Requests that do not wait for that are in commands.h.
//
// Owned by the flow, on dispatch's thread.
#pragma once

#include <cstdint>
#include <string>

#include "service/actor/outgoing.h"
#include "service/dispatch/blocks/blocks.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/observe/events.h"
#include "service/watch/messages.h"

namespace headrace::service {

class SettingChanges {
 public:
  SettingChanges(Blocks& blocks, JobEvents& events) : blocks_(blocks), events_(events) {}

  // Keeps the change until the border, or, where the job stands at one, puts it in force.
  void Request(Job& job, const Steering& steering, TimeNs now);
  // An iteration is about to begin, or the operation of that number is about to open.
  void AtBorder(Job& job, std::uint64_t next_operation, TimeNs now) {
    if (job.steering.any_waiting) Apply(job, next_operation, now);
  }

  // The job ends, and its settings with it: if its ranks may come back, people have to set them
  // again, and are refused.
  void ReportLostSettings(const Job& job);

  // The first operation that nobody has posted.
  static std::uint64_t NextOperation(const Job& job);

 private:
  void Apply(Job& job, std::uint64_t next_operation, TimeNs now);

  Blocks& blocks_;
  JobEvents& events_;
};

// "uid 1000 on node b"
std::string AskedBy(const Steering& steering);

// What posts beyond the end of a drained job end with; the end is known.
Failure DrainedFailure(const Job& job);

}  // namespace headrace::service
