// The rows that the flight recorder writes, from a job and its record: conversions, nothing else.
#pragma once

#include <optional>

#include "ipc/board_layout.h"
#include "service/dispatch/job/job.h"

namespace headrace::service {

// The row of a block that ends; null failure: it ended well.
ipc::FlightRow MakeFlightRow(const Job& job, const Operation& operation, const Block& block,
                             const Failure* failure, TimeNs now);
// The row of an operation that ends before it was cut into blocks.
ipc::FlightRow MakeUncutRow(const Job& job, const Operation& operation, TimeNs now);
// The row of the plan's block that would have begun next; nothing when none of it was posted.
std::optional<ipc::FlightRow> MakeFailedHeadRow(const Job& job, const Failure& failure, TimeNs now);

}  // namespace headrace::service
