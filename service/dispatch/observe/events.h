// What is reported of a job: a line in the log, and an event on the board.
//
// Dispatch's thread. A watch that is too far behind has enough to report, so nothing waits for it.
#pragma once

#include <string>

#include "service/actor/outgoing.h"
#include "service/dispatch/job/job.h"
#include "service/watch/messages.h"

namespace headrace::service {

class JobEvents {
 public:
  explicit JobEvents(Outgoing<WatchMessage>& watch) : watch_(watch) {}

  // Not more than a few times a job: a client that does everything wrong must not fill the log.
  void Report(const Job& job, Code code, std::string text);
  // What somebody asked for, or is bounded by who says it: not counted.
  void Announce(const Job& job, Code code, const std::string& text);
  // What a lane sends to another node takes another rail. Such are few: a rail that has failed is
  // left alone, each time for longer.
  void AnnounceMove(const Job& job, const std::string& lane, const std::string& node,
                    const transport::LinkMove& move);

 private:
  Outgoing<WatchMessage>& watch_;
};

}  // namespace headrace::service
