#include "client/cli/ctl/flight_reading.h"

#include <algorithm>
#include <utility>

namespace headrace::ctl {

void AddPrevious(CLI::App& command, bool& previous) {
  command.add_flag("--previous", previous, "read what the previous run of the service left");
}

std::string FlightPath(const Globals& globals, bool previous) {
  return previous ? ipc::PreviousBoardPath(globals.board_path) : globals.board_path;
}

std::optional<FlightLog> ReadFlight(const Globals& globals, const std::string& path) {
  Result<FlightLog> log = ReadFlightLog(path, globals.uid);
  if (log) return std::move(log).value();
  Complain(log.error().text());
  return std::nullopt;
}

bool IsRecorded(const FlightLog& log, const std::string& job) {
  if (std::ranges::none_of(log.jobs, [&job](const FlightJob& one) { return one.name() == job; })) {
    Complain("nothing is recorded of a job called " + job);
    return false;
  }
  return IsUnambiguous(job, log.OwnersOf(job));
}

}  // namespace headrace::ctl
