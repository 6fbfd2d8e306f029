// One reading of the flight recorder: what the last blocks and iterations of each job did, also of
// jobs that are over and of a service that is gone. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/ctl/snapshot.h"
#include "ipc/board.h"

namespace headrace::ctl {

struct FlightJob {
  ipc::FlightJobRow row{};
  std::vector<ipc::FlightRow> blocks;           // oldest first
  std::vector<ipc::PassRow> passes;             // likewise
  std::map<std::uint64_t, std::string> causes;  // of blocks that failed, by number
  std::uint32_t code = 0;                       // headrace::Code of how the job ended
  std::string cause;                            // why it failed; empty: it lives or ended well

  // How many were recorded, and are not to be read any more.
  std::uint64_t blocks_overwritten() const;
  std::uint64_t passes_overwritten() const;
  std::string_view name() const { return ipc::GetText(row.name); }
  // Why the block failed; empty: it did not.
  std::string_view CauseOf(const ipc::FlightRow& block) const;
};

struct FlightLog {
  Snapshot snapshot;
  std::vector<FlightJob> jobs;  // in the order in which they opened

  // A moment of the service as unix time; it holds across a restart of the machine.
  std::int64_t UnixTime(TimeNs time_ns) const;
  // The users that have a job of that name.
  std::set<std::uint32_t> OwnersOf(std::string_view job) const;
};

// Reads the rows in `layout`, copied at `now_ns`.
FlightLog ReadFlightLogFrom(const ipc::BoardLayout& layout, TimeNs now_ns);
// Opens the board at `path` and reads it; with `uid` only jobs of that user. The error says what to
// do when there is none.
Result<FlightLog> ReadFlightLog(const std::string& path,
                                std::optional<std::uint32_t> uid = std::nullopt);

}  // namespace headrace::ctl
