// The flight recorder's log of one job as a trace for Perfetto or Chrome. Pure.
#pragma once

#include <string>

#include "client/cli/ctl/flight_log.h"

namespace headrace::ctl {

// A process for the service, with a track per lane that carries every stage of a block, and one for
// the waits in front of it; what overlaps stands in further tracks of the same name. A process per
// rank of this node with its backward passes, forward passes, the waits in these, and its posts as
// instants. A forward pass is known by how long it took and how long of that it waited: its waits
// are drawn in one piece, at its begin. Times count from the first thing in the trace.
std::string JobTrace(const FlightLog& log, const FlightJob& job);

}  // namespace headrace::ctl
