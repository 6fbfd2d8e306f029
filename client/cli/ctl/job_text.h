// The numbers of board rows as words, the same in tables and JSON.
#pragma once

#include <string>
#include <string_view>

#include "client/cli/ctl/snapshot.h"
#include "ipc/board_text.h"

namespace headrace::ctl {

using ipc::JobStateName;
using ipc::RateNow;
using ipc::ServiceStateName;
using ipc::StageStateName;
using ipc::WaitReasonName;

// "1 here of 2": ranks of the job that are attached to this service, and those on all nodes.
std::string RanksHere(const ipc::JobRow& job);

// When the last job of that name ended and why, where none of that name lives, and which command
// tells more. Empty where the service knows of none.
std::string HowItEnded(const Snapshot& snapshot, std::string_view name);

// "running", and whether somebody steers it: "running, paused", "running, draining".
std::string FormatJobState(const ipc::JobRow& job);

}  // namespace headrace::ctl
