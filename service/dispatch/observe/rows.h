// What the board shows of dispatch's state: conversions, nothing else.
#pragma once

#include "ipc/board_layout.h"
#include "service/dispatch/job/job.h"

namespace headrace::service {

ipc::JobRow MakeJobRow(const Job& job);
ipc::RankRow MakeRankRow(const Job& job, std::uint32_t rank);
// The row of an open operation, with why it waits.
ipc::QueueRow MakeQueueRow(const Job& job, const Operation& operation);

// What the block that begins next waits for.
ipc::QueueRow MakeHeadRow(const Job& job, TimeNs now);
// The plan in force, and how iterations went; the job has a layout.
ipc::PlanRow MakePlanRow(const Job& job);
// A block of the plan as it was predicted.
ipc::PlanBlockRow MakePlanBlockRow(const Job& job, const WirePlan& plan, std::uint32_t index);

}  // namespace headrace::service
