// One reading of the board; every table is a pure function of it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "ipc/base/result.h"
#include "ipc/board_reading.h"

namespace headrace::ctl {

using Snapshot = ipc::BoardReading;
using Lane = ipc::Placed<ipc::LaneRow>;  // with its place in the lane table
using Gpu = ipc::Placed<ipc::GpuRow>;    // with its ordinal

// Reads every table. A row that is being written is looked at again for some milliseconds.
Snapshot TakeSnapshot(const ipc::BoardLayout& layout, TimeNs now_ns);

// Opens the board at `path` and reads it. The error says what to do when no service is there.
Result<Snapshot> ReadBoard(const std::string& path);

// Drops the jobs of other users, and the rows and events about them.
void KeepJobsOf(Snapshot& snapshot, std::uint32_t uid);

// The users that have a job of that name.
std::set<std::uint32_t> OwnersOf(const Snapshot& snapshot, std::string_view job);

}  // namespace headrace::ctl
