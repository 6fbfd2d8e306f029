// What the board shows of dispatch's state: conversions, nothing else.
#pragma once

#include "ipc/board_layout.h"
#include "service/dispatch/job.h"

namespace headrace::service {

ipc::JobRow MakeJobRow(const Job& job);
ipc::RankRow MakeRankRow(const Job& job, std::uint32_t rank);
// The row of an open operation, with why it waits.
ipc::QueueRow MakeQueueRow(const Job& job, const Operation& operation);

}  // namespace headrace::service
