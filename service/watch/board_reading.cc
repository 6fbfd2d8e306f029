#include "service/watch/board_reading.h"

#include <algorithm>
#include <tuple>

namespace headrace::service {
namespace {

template <typename Row, std::size_t N, typename Use>
void ReadTable(const ipc::BoardSlot<Row> (&table)[N], std::size_t& unread, const Use& use) {
  for (std::size_t index = 0; index < N; ++index) {
    if (const std::optional<Row> row = ipc::ReadRow(table[index])) {
      use(index, *row);
    } else {
      ++unread;
    }
  }
}

template <typename Row, std::size_t N, typename InUse>
std::vector<Row> Rows(const ipc::BoardSlot<Row> (&table)[N], std::size_t& unread,
                      const InUse& in_use) {
  std::vector<Row> rows;
  ReadTable(table, unread, [&](std::size_t, const Row& row) {
    if (in_use(row)) rows.push_back(row);
  });
  return rows;
}

template <typename Row, std::size_t N, typename InUse>
std::vector<Placed<Row>> PlacedRows(const ipc::BoardSlot<Row> (&table)[N], std::size_t& unread,
                                    const InUse& in_use) {
  std::vector<Placed<Row>> rows;
  ReadTable(table, unread, [&](std::size_t index, const Row& row) {
    if (in_use(row)) rows.push_back({.index = index, .row = row});
  });
  return rows;
}

constexpr auto kOfJob = [](const auto& row) { return row.job_id != 0; };

template <typename Row, typename Key>
void SortBy(std::vector<Row>& rows, const Key& key) {
  std::sort(rows.begin(), rows.end(),
            [&key](const Row& left, const Row& right) { return key(left) < key(right); });
}

// The last rows of a ring of N: those whose numbers are what the ring should hold by now.
template <typename Row, std::size_t N>
std::vector<Row> LastOf(const ipc::BoardSlot<Row> (&ring)[N], std::uint64_t written,
                        std::size_t count) {
  const std::uint64_t wanted = std::min<std::uint64_t>({written, count, N});
  std::vector<Row> rows;
  for (std::uint64_t number = written - wanted + 1; number <= written; ++number) {
    const std::optional<Row> row = ipc::ReadRow(ring[(number - 1) % N]);
    if (row && row->number == number) rows.push_back(*row);
  }
  return rows;
}

}  // namespace

const ipc::JobRow* BoardReading::FindJob(std::uint32_t id) const {
  const auto found =
      std::find_if(jobs.begin(), jobs.end(), [id](const ipc::JobRow& job) { return job.id == id; });
  return found == jobs.end() ? nullptr : &*found;
}

const ipc::LaneRow* BoardReading::FindLane(std::size_t index) const {
  const auto found = std::find_if(lanes.begin(), lanes.end(),
                                  [index](const auto& lane) { return lane.index == index; });
  return found == lanes.end() ? nullptr : &found->row;
}

const ipc::PlanRow* BoardReading::FindPlan(std::uint32_t job_id) const {
  const auto found = std::find_if(plans.begin(), plans.end(), [job_id](const ipc::PlanRow& plan) {
    return plan.job_id == job_id;
  });
  return found == plans.end() ? nullptr : &*found;
}

const Placed<ipc::FlightJobRow>* BoardReading::FindFlight(std::uint32_t job_id) const {
  const auto found = std::find_if(flights.begin(), flights.end(), [job_id](const auto& flight) {
    return flight.row.job_id == job_id;
  });
  return found == flights.end() ? nullptr : &*found;
}

BoardReading ReadBoard(const ipc::BoardLayout& layout, TimeNs now_ns) {
  BoardReading reading;
  std::size_t& unread = reading.rows_unread;
  reading.now_ns = now_ns;
  if (const auto row = ipc::ReadRow(layout.service)) {
    reading.service = *row;
  } else {
    ++unread;
  }
  if (const auto row = ipc::ReadRow(layout.counters)) {
    reading.counters = *row;
  } else {
    ++unread;
  }
  reading.jobs = Rows(layout.jobs, unread, [](const ipc::JobRow& row) { return row.id != 0; });
  reading.ranks = Rows(layout.ranks, unread, kOfJob);
  reading.queue = Rows(layout.queue, unread, [](const ipc::QueueRow& row) { return row.block; });
  reading.lanes = PlacedRows(layout.lanes, unread, [](const auto& row) { return row.in_use != 0; });
  reading.gpus = PlacedRows(layout.gpus, unread, [](const auto& row) { return row.in_use != 0; });
  reading.plans = Rows(layout.plans, unread, kOfJob);
  reading.shares = Rows(layout.shares, unread, kOfJob);
  reading.flights = PlacedRows(layout.flight_jobs, unread, kOfJob);
  reading.events = Rows(layout.events, unread, [](const auto& row) { return row.number != 0; });
  SortBy(reading.jobs, [](const ipc::JobRow& row) { return row.id; });
  SortBy(reading.ranks, [](const ipc::RankRow& row) { return std::pair(row.job_id, row.rank); });
  SortBy(reading.queue, [](const ipc::QueueRow& row) {
    return std::tuple(row.job_id, row.iteration, row.block, row.stage);
  });
  SortBy(reading.plans, [](const ipc::PlanRow& row) { return row.job_id; });
  SortBy(reading.shares, [](const ipc::ShareRow& row) { return std::pair(row.job_id, row.lane); });
  SortBy(reading.flights, [](const auto& flight) { return flight.row.job_id; });
  SortBy(reading.events, [](const ipc::EventRow& row) { return row.number; });
  return reading;
}

std::vector<ipc::FlightRow> LastFlights(const ipc::BoardLayout& layout,
                                        const Placed<ipc::FlightJobRow>& job, std::size_t count) {
  return LastOf(layout.flights[job.index], job.row.blocks, count);
}

std::vector<ipc::PassRow> LastPasses(const ipc::BoardLayout& layout,
                                     const Placed<ipc::FlightJobRow>& job, std::size_t count) {
  return LastOf(layout.passes[job.index], job.row.passes, count);
}

}  // namespace headrace::service
