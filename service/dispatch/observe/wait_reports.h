// Texts that say which rank or node all others wait for.
#pragma once

#include <string>

#include "service/dispatch/job/job.h"
#include "service/dispatch/lanes/lanes.h"

namespace headrace::service {

struct WaitReport {
  std::string subject;    // "operation 12 [all_reduce of 16 float32 (sum), fc.bias]"
  std::string text;       // the report, as this node shows it
  std::string to_others;  // the same for the job's other nodes; empty: no rank of this node is late
};

// "5.0 s".
std::string FormatSeconds(TimeNs time_ns);

// An operation that not all ranks have posted, and one in the queue or on a lane.
WaitReport ReportOperationWait(const Job& job, const Operation& operation, TimeNs waited_ns);
WaitReport ReportMoveWait(const Job& job, const Operation& operation, const Lanes& lanes,
                          TimeNs waited_ns);
// The head of the plan, or gradients that no plan moves.
WaitReport ReportHeadWait(const Job& job, TimeNs waited_ns);

// What ends with its time-out ends for: an operation, or a gradient of the layout.
Failure DescribeTimeout(const Job& job, const Operation& operation, const Lanes& lanes, TimeNs now);
Failure DescribeTimeout(const Job& job, std::uint32_t tensor, const Lanes& lanes, TimeNs now);
// What the job ends with when another node holds bytes of a pair that ended so long ago.
Failure DescribeHeld(const Job& job, const Operation& operation, TimeNs for_ns);
// What a message whose send has ended is withdrawn for.
Failure DescribeUnreceived(const Job& job, const Operation& operation, TimeNs now);

// Why gradients that were posted have no plan: who has not handed in a layout, as far as this node
// knows.
std::string WhyNoPlan(const Job& job);

}  // namespace headrace::service
