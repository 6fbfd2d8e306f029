// What `flight` and `trace` share: the records that a service left on its board.
#pragma once

#include <optional>
#include <string>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/flight_log.h"

namespace headrace::ctl {

// --previous.
void AddPrevious(CLI::App& command, bool& previous);

// The board that is read: with `previous` that of the run before this one.
std::string FlightPath(const Globals& globals, bool previous);
// Nothing where it cannot be read; stderr says why.
std::optional<FlightLog> ReadFlight(const Globals& globals, const std::string& path);

// True where the job is recorded and no more than one user has one of that name; else stderr says
// what is wrong.
bool IsRecorded(const FlightLog& log, const std::string& job);

}  // namespace headrace::ctl
