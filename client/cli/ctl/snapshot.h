// One reading of the board: the rows in use, as they were at one moment each. Plain values, so that
// every table is a pure function of a snapshot.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/board.h"

namespace headrace::ctl {

// A lane with its place in the lane table, which queue rows refer to.
struct Lane {
  std::size_t index = 0;
  ipc::LaneRow row{};
};

// A GPU with its ordinal.
struct Gpu {
  std::size_t index = 0;
  ipc::GpuRow row{};
};

struct Snapshot {
  TimeNs now_ns = 0;  // CLOCK_MONOTONIC when it was taken
  ipc::ServiceRow service{};
  ipc::CountersRow counters{};
  std::vector<ipc::JobRow> jobs;               // by id
  std::vector<ipc::RankRow> ranks;             // by job, then rank
  std::vector<ipc::QueueRow> queue;            // by job, iteration, block, stage
  std::vector<Lane> lanes;                     // by place
  std::vector<Gpu> gpus;                       // by ordinal; empty: the service uses none
  std::vector<ipc::EventRow> events;           // oldest first
  std::vector<ipc::PlanRow> plans;             // by job
  std::vector<ipc::PlanBlockRow> plan_blocks;  // by job, then place in dispatch order
  std::vector<ipc::ShareRow> shares;           // by lane, then job
  // Rows whose writer stood in the middle of them all the time: a service stopped just there.
  std::size_t rows_unread = 0;

  // Null when there is none.
  const ipc::JobRow* FindJob(std::uint32_t id) const;
  const ipc::LaneRow* FindLane(std::size_t index) const;
  const ipc::PlanRow* FindPlan(std::uint32_t job_id) const;
};

// Reads every table. A row that is being written is looked at again for some milliseconds.
Snapshot TakeSnapshot(const ipc::BoardLayout& layout, TimeNs now_ns);

// Opens the board at `path` and reads it. The error says what to do when no service is there.
Result<Snapshot> ReadBoard(const std::string& path);

}  // namespace headrace::ctl
