// Reports about a job: a line in the log, and an event on the board.
//
// Dispatch's thread. Nothing waits for watch: if it is too far behind, reports are dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "service/actor/outgoing.h"
#include "service/dispatch/job/job.h"
#include "service/session/steering.h"
#include "service/watch/messages.h"

namespace headrace::service {

class JobEvents {
 public:
  explicit JobEvents(Outgoing<WatchMessage>& watch) : watch_(watch) {}

  // Not more than a few times a job: a client that does everything wrong must not fill the log.
  void Report(const Job& job, Code code, std::string text);
  // A message whose send has ended was not received.
  void ReportUnreceived(const Job& job, const Pair& pair, const Failure& why);
  // The job has failed: how many messages that is true of.
  void ReportUnreceived(const Job& job);
  // What its ranks cause again and again (they are late, go on, are slow): watch bounds how often
  // its owner may.
  void Announce(const Job& job, Code code, const std::string& text);
  // What somebody asked for, and the job now does. Counts as theirs.
  void AnnounceSteering(const Job& job, const Steering& asked, const std::string& text);
  // What a lane sends to another node takes another rail. Such are few: a rail that has failed is
  // left alone, each time for longer.
  void AnnounceMove(const Job& job, const std::string& lane, const std::string& node,
                    const transport::LinkMove& move);

 private:
  // `uid`: whose doing it is; none: no client's.
  void Send(const Job& job, Code code, const std::string& text, std::optional<std::uint32_t> uid);

  Outgoing<WatchMessage>& watch_;
};

}  // namespace headrace::service
