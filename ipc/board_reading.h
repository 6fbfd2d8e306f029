// One reading of the board: the rows in use, as they were at one moment each. Plain values, so that
// every table, page and metric is a pure function of a reading. The writer goes on meanwhile;
// reading disturbs nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/board.h"

namespace headrace::ipc {

// A row with its place in its table, by which other rows refer to it.
template <typename Row>
struct Placed {
  std::size_t index = 0;
  Row row{};
};

struct BoardReading {
  TimeNs now_ns = 0;  // CLOCK_MONOTONIC when it was taken
  ServiceRow service{};
  CountersRow counters{};
  LogRow log{};
  CertificateRow certificate{};               // in_use 0: the service has none
  std::vector<JobRow> jobs;                   // by id
  std::vector<RankRow> ranks;                 // by job, then rank
  std::vector<QueueRow> queue;                // by job, iteration, block, stage
  std::vector<Placed<LaneRow>> lanes;         // by place
  std::vector<Placed<GpuRow>> gpus;           // by ordinal; empty: the service uses none
  std::vector<EventRow> events;               // oldest first
  std::vector<PlanRow> plans;                 // by job
  std::vector<PlanBlockRow> plan_blocks;      // by job, then place in dispatch order
  std::vector<ShareRow> shares;               // by lane, then job
  std::vector<Placed<FlightJobRow>> flights;  // by job
  std::vector<FlightEndRow> flight_ends;      // by job: of those that failed
  std::vector<PeerRow> peers;                 // as they stand
  std::vector<ServedRow> served;              // likewise
  std::vector<UserRow> users;                 // by uid
  // Rows whose writer stood in the middle of them all the time: a service stopped just there.
  std::size_t rows_unread = 0;

  // Null when there is none.
  const JobRow* FindJob(std::uint32_t id) const;
  const LaneRow* FindLane(std::size_t index) const;
  const PlanRow* FindPlan(std::uint32_t job_id) const;
  const Placed<FlightJobRow>* FindFlight(std::uint32_t job_id) const;
  const FlightEndRow* FindEnd(std::uint32_t job_id) const;
  // The last job of that name, if it has ended: none of the name lives.
  const FlightJobRow* FindEnded(std::string_view name) const;
  // Converts a moment of the service's clock.
  std::int64_t UnixTime(TimeNs time_ns) const {
    return service.started_unix_ns + (time_ns - service.started_ns);
  }
};

struct ReadingOptions {
  // How often a row that is being written is looked at, a millisecond apart: a writer that lost its
  // core in the middle of a row has it back within a few time slices.
  int looks_max = 1;
  bool with_plan_blocks = false;  // the largest table
};

// Reads all tables but the rings of the flight recorder.
BoardReading ReadBoard(const BoardLayout& layout, TimeNs now_ns,
                       const ReadingOptions& options = {});

// The last `count` rows of a job's ring, oldest first. Rows that are being overwritten are left
// out.
std::vector<FlightRow> LastFlights(const BoardLayout& layout, const Placed<FlightJobRow>& job,
                                   std::size_t count);
std::vector<PassRow> LastPasses(const BoardLayout& layout, const Placed<FlightJobRow>& job,
                                std::size_t count);

}  // namespace headrace::ipc
