// What `headracectl flight` prints: pure functions of a log.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/ctl/flight_log.h"
#include "client/cli/ctl/views.h"

namespace headrace::ctl {

struct FlightQuery {
  std::string job{};            // empty: all jobs
  bool failed = false;          // only what failed
  std::uint64_t rows_max = 20;  // of each job, the newest
  bool with_open = false;       // what was open at the end too: the service is gone
};

// The rows wanted, oldest first.
std::vector<ipc::FlightRow> SelectBlocks(const FlightJob& job, const FlightQuery& query);

// `now_unix_ns` is what ages count from.
std::string FlightTable(const FlightLog& log, const FlightQuery& query, std::int64_t now_unix_ns,
                        bool with_header);
Json FlightJson(const FlightLog& log, const FlightQuery& query);

// "57/12" of a plan's block, "op 12" of an operation, "op 12.3" of one of its several blocks.
std::string FlightName(const ipc::FlightRow& row);

}  // namespace headrace::ctl
