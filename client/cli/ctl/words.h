// The numbers of board rows as words, the same in tables and JSON.
#pragma once

#include <string>

#include "client/cli/ctl/snapshot.h"
#include "ipc/board_words.h"

namespace headrace::ctl {

using ipc::JobStateName;
using ipc::RateNow;
using ipc::ServiceStateName;
using ipc::StageStateName;
using ipc::WaitReasonName;

// "running", and whether somebody steers it: "running, paused", "running, draining".
std::string JobStateWords(const ipc::JobRow& job);

// The policies that make plans, as they are spelled everywhere.
inline constexpr const char* kPolicies[] = {"bsp",           "wfbp",    "mg-wfbp",
                                            "bytescheduler", "us-byte", "exact"};

}  // namespace headrace::ctl
