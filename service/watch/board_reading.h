// One reading of the board, for whoever scrapes the service or opens its status page: the rows in
// use, as they were at one moment each. Other threads write them meanwhile; reading disturbs
// nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/board.h"

namespace headrace::service {

// A row with its place in its table, by which other rows refer to it.
template <typename Row>
struct Placed {
  std::size_t index = 0;
  Row row{};
};

struct BoardReading {
  TimeNs now_ns = 0;  // CLOCK_MONOTONIC when it was taken
  ipc::ServiceRow service{};
  ipc::CountersRow counters{};
  std::vector<ipc::JobRow> jobs;                   // by id
  std::vector<ipc::RankRow> ranks;                 // by job, then rank
  std::vector<ipc::QueueRow> queue;                // by job, iteration, block, stage
  std::vector<Placed<ipc::LaneRow>> lanes;         // by place
  std::vector<Placed<ipc::GpuRow>> gpus;           // by ordinal
  std::vector<ipc::PlanRow> plans;                 // by job
  std::vector<ipc::ShareRow> shares;               // by job, then lane
  std::vector<Placed<ipc::FlightJobRow>> flights;  // by job
  std::vector<ipc::EventRow> events;               // oldest first
  // Rows whose writer stood in the middle of them all the time.
  std::size_t rows_unread = 0;

  // Null when there is none.
  const ipc::JobRow* FindJob(std::uint32_t id) const;
  const ipc::LaneRow* FindLane(std::size_t index) const;
  const ipc::PlanRow* FindPlan(std::uint32_t job_id) const;
  const Placed<ipc::FlightJobRow>* FindFlight(std::uint32_t job_id) const;
};

// Reads all tables but the blocks of plans and the rings of the flight recorder.
BoardReading ReadBoard(const ipc::BoardLayout& layout, TimeNs now_ns);

// The last `count` rows of a job's ring, oldest first; `written` is how many were written in all.
// Rows that are being overwritten are left out.
std::vector<ipc::FlightRow> LastFlights(const ipc::BoardLayout& layout,
                                        const Placed<ipc::FlightJobRow>& job, std::size_t count);
std::vector<ipc::PassRow> LastPasses(const ipc::BoardLayout& layout,
                                     const Placed<ipc::FlightJobRow>& job, std::size_t count);

}  // namespace headrace::service
