// The numbers of board rows as words: the same on the command line, in JSON, on the status page and
// among the metrics.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/board_reading.h"

namespace headrace::ipc {

// "starting", "running", "draining", "stopped"; "unknown" for a number of another version.
std::string_view ServiceStateName(std::uint32_t state);
// "gathering", "running", "failed".
std::string_view JobStateName(std::uint32_t state);
// "same", "above": when sends and receives of a job go beside its other blocks.
std::string_view SendsClassName(std::uint32_t sends_class);
// "gathering", "waiting", "moving".
std::string_view StageStateName(std::uint32_t state);
// "", "rank_not_ready", "rank_not_attached", "no_credit", "behind_block", "behind_job",
// "nodes_not_ready", "no_plan", "peer", "paused", "rate_limit", "interleaved", "gpu_not_ready",
// "in_flight", "iteration", "lane_full", "no_receive", "no_send".
std::string_view WaitReasonName(std::uint32_t reason);

// Whether the block stage waits for a peer's bytes: what others of its job wait for then as well.
bool WaitsForPeer(const QueueRow& row);

// Why a block stage waits, in whole words and with how long where that is what counts: "rank 2 of
// job bert not ready for 1.4 s", "no credit on shm0", "behind job vision on shm0"; empty when it
// does not wait.
std::string WhyItWaits(const QueueRow& row, const BoardReading& reading);

// The service writes a lane's rate when a stage ends: one that is older than a second is nothing
// now.
std::uint64_t RateNow(const LaneRow& row, TimeNs now_ns);

// Names as people read them; numbers in place of what the reading does not have.
std::string JobName(std::uint32_t id, const BoardReading& reading);
std::string LaneName(std::size_t index, const BoardReading& reading);

}  // namespace headrace::ipc
