// The numbers of board rows as words, the same in tables and JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "client/cli/ctl/snapshot.h"

namespace headrace::ctl {

// "starting", "running", "draining", "stopped"; "unknown" for a number of another version.
std::string_view ServiceStateName(std::uint32_t state);
// "gathering", "running", "failed".
std::string_view JobStateName(std::uint32_t state);
// "gathering", "waiting", "moving".
std::string_view StageStateName(std::uint32_t state);
// "", "rank_not_ready", "rank_not_attached", "no_credit", "behind_block", "behind_job",
// "nodes_not_ready", "no_plan".
std::string_view WaitReasonName(std::uint32_t reason);

// Why a block stage waits: "ranks 2, 3 not ready", "rank 3 not attached", "no credit on lane shm0",
// "behind block 7", "behind job vision"; empty when it does not wait.
std::string WhyItWaits(const ipc::QueueRow& row, const Snapshot& snapshot);

// The policies that make plans, as they are spelled everywhere.
inline constexpr const char* kPolicies[] = {"bsp",           "wfbp",    "mg-wfbp",
                                            "bytescheduler", "us-byte", "exact"};

// Names for tables; numbers in place of what the snapshot does not have.
std::string JobName(std::uint32_t id, const Snapshot& snapshot);
std::string LaneName(std::size_t index, const Snapshot& snapshot);

}  // namespace headrace::ctl
