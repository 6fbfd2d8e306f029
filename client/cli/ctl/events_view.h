// The things that happened, and how to follow them as they happen. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/ctl/views.h"

namespace headrace::ctl {

// Those of the jobs called `job`, or all when it is empty; oldest first.
std::string EventsTable(const Snapshot& snapshot, std::string_view job, bool with_header);
Json EventsJson(const Snapshot& snapshot, std::string_view job);

// The reading with only the newest `count` of that job's events; 0: all of them.
Snapshot NewestEvents(const Snapshot& snapshot, std::string_view job, std::uint64_t count);

// One event as a line, with columns of fixed width so that lines printed one by one align.
std::string EventLine(const ipc::EventRow& event, const Snapshot& snapshot);
Json EventJson(const ipc::EventRow& event);

bool IsEventOf(const ipc::EventRow& event, const Snapshot& snapshot, std::string_view job);

// What came since the last look. The board keeps the last kEventRowsMax events: one that was
// overwritten before it was read is counted, never passed over in silence.
class EventsFollower {
 public:
  struct News {
    bool is_new_service = false;  // numbers begin anew; nothing is known of what lay between
    std::uint64_t lost = 0;       // overwritten before they were read; they come before `events`
    std::vector<ipc::EventRow> events;
  };
  // The first look gives all that is there and counts nothing as lost.
  News Update(const Snapshot& snapshot);

 private:
  TimeNs service_started_ns_ = 0;
  std::uint64_t last_number_ = 0;
  bool has_looked_ = false;
};

}  // namespace headrace::ctl
