#include "ipc/board_reading.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <tuple>

#include "ipc/base/check.h"

namespace headrace::ipc {
namespace {

constexpr auto kPause = std::chrono::milliseconds(1);

// Reads rows, and counts those that it could not.
class Reader {
 public:
  Reader(int looks_max, std::size_t& unread) : looks_max_(looks_max), unread_(unread) {}

  template <typename Row>
  std::optional<Row> Read(const BoardSlot<Row>& slot) {
    // Once a row was found stopped, the others of a stopped service need no patience.
    const int looks_max = unread_ == 0 ? looks_max_ : 1;
    for (int look = 0; look < looks_max; ++look) {
      if (look > 0) std::this_thread::sleep_for(kPause);
      if (std::optional<Row> row = ReadRow(slot)) return row;
    }
    ++unread_;
    return std::nullopt;
  }

  template <typename Row, std::size_t N, typename InUse>
  std::vector<Placed<Row>> ReadPlaced(const BoardSlot<Row> (&table)[N], const InUse& in_use) {
    std::vector<Placed<Row>> rows;
    for (std::size_t index = 0; index < N; ++index) {
      const std::optional<Row> row = Read(table[index]);
      if (row && in_use(*row)) rows.push_back({.index = index, .row = *row});
    }
    return rows;
  }

  template <typename Row, std::size_t N, typename InUse>
  std::vector<Row> ReadTable(const BoardSlot<Row> (&table)[N], const InUse& in_use) {
    std::vector<Row> rows;
    for (const BoardSlot<Row>& slot : table) {
      const std::optional<Row> row = Read(slot);
      if (row && in_use(*row)) rows.push_back(*row);
    }
    return rows;
  }

 private:
  int looks_max_;
  std::size_t& unread_;
};

constexpr auto kOfJob = [](const auto& row) { return row.job_id != 0; };
constexpr auto kInUse = [](const auto& row) { return row.in_use != 0; };

template <typename Row, typename Key>
void SortBy(std::vector<Row>& rows, const Key& key) {
  std::sort(rows.begin(), rows.end(),
            [&key](const Row& left, const Row& right) { return key(left) < key(right); });
}

void Sort(BoardReading& reading) {
  SortBy(reading.jobs, [](const JobRow& row) { return row.id; });
  SortBy(reading.ranks, [](const RankRow& row) { return std::tuple(row.job_id, row.rank); });
  SortBy(reading.queue, [](const QueueRow& row) {
    return std::tuple(row.job_id, row.iteration, row.block, row.stage);
  });
  SortBy(reading.events, [](const EventRow& row) { return row.number; });
  SortBy(reading.plans, [](const PlanRow& row) { return row.job_id; });
  SortBy(reading.plan_blocks,
         [](const PlanBlockRow& row) { return std::tuple(row.job_id, row.index); });
  SortBy(reading.shares, [](const ShareRow& row) { return std::tuple(row.lane, row.job_id); });
  SortBy(reading.flights, [](const auto& flight) { return flight.row.job_id; });
  SortBy(reading.users, [](const UserRow& row) { return row.uid; });
}

template <typename Rows, typename Is>
auto Find(const Rows& rows, const Is& is) {
  const auto found = std::find_if(rows.begin(), rows.end(), is);
  return found == rows.end() ? nullptr : &*found;
}

// The last rows of a ring of N: those whose numbers are what the ring should hold by now.
template <typename Row, std::size_t N>
std::vector<Row> LastOf(const BoardSlot<Row> (&ring)[N], std::uint64_t written, std::size_t count) {
  const auto wanted = std::min<std::uint64_t>({written, count, N});
  std::vector<Row> rows;
  for (std::uint64_t number = written - wanted + 1; number <= written; ++number) {
    const std::optional<Row> row = ReadRow(ring[(number - 1) % N]);
    if (row && row->number == number) rows.push_back(*row);
  }
  return rows;
}

}  // namespace

const JobRow* BoardReading::FindJob(std::uint32_t id) const {
  return Find(jobs, [id](const JobRow& job) { return job.id == id; });
}

const LaneRow* BoardReading::FindLane(std::size_t index) const {
  const auto* const lane = Find(lanes, [index](const auto& each) { return each.index == index; });
  return lane == nullptr ? nullptr : &lane->row;
}

const PlanRow* BoardReading::FindPlan(std::uint32_t job_id) const {
  return Find(plans, [job_id](const PlanRow& plan) { return plan.job_id == job_id; });
}

const Placed<FlightJobRow>* BoardReading::FindFlight(std::uint32_t job_id) const {
  return Find(flights, [job_id](const auto& flight) { return flight.row.job_id == job_id; });
}

const FlightEndRow* BoardReading::FindEnd(std::uint32_t job_id) const {
  return Find(flight_ends, [job_id](const FlightEndRow& end) { return end.job_id == job_id; });
}

const FlightJobRow* BoardReading::FindEnded(std::string_view name) const {
  const bool lives = Find(jobs, [name](const JobRow& job) { return GetText(job.name) == name; });
  if (lives) return nullptr;
  const FlightJobRow* last = nullptr;
  for (const Placed<FlightJobRow>& flight : flights) {
    const FlightJobRow& row = flight.row;
    if (row.ended_ns == 0 || GetText(row.name) != name) continue;
    if (last == nullptr || row.ended_ns > last->ended_ns) last = &row;
  }
  return last;
}

BoardReading ReadBoard(const BoardLayout& layout, TimeNs now_ns, const ReadingOptions& options) {
  BoardReading reading;
  reading.now_ns = now_ns;
  Reader reader(options.looks_max, reading.rows_unread);
  if (const auto row = reader.Read(layout.service)) reading.service = *row;
  if (const auto row = reader.Read(layout.counters)) reading.counters = *row;
  if (const auto row = reader.Read(layout.log)) reading.log = *row;
  if (const auto row = reader.Read(layout.certificate)) reading.certificate = *row;
  reading.jobs = reader.ReadTable(layout.jobs, [](const JobRow& row) { return row.id != 0; });
  reading.ranks = reader.ReadTable(layout.ranks, kOfJob);
  reading.queue =
      reader.ReadTable(layout.queue, [](const QueueRow& row) { return row.block != 0; });
  reading.lanes = reader.ReadPlaced(layout.lanes, kInUse);
  reading.gpus = reader.ReadPlaced(layout.gpus, kInUse);
  reading.events =
      reader.ReadTable(layout.events, [](const EventRow& row) { return row.number != 0; });
  reading.plans = reader.ReadTable(layout.plans, kOfJob);
  if (options.with_plan_blocks) reading.plan_blocks = reader.ReadTable(layout.plan_blocks, kOfJob);
  reading.shares = reader.ReadTable(layout.shares, kOfJob);
  reading.flights = reader.ReadPlaced(layout.flight_jobs, kOfJob);
  reading.flight_ends = reader.ReadTable(layout.flight_ends, kOfJob);
  reading.peers = reader.ReadTable(layout.peers, kInUse);
  reading.served = reader.ReadTable(layout.served, kInUse);
  reading.users = reader.ReadTable(layout.users, kInUse);
  Sort(reading);
  return reading;
}

std::vector<FlightRow> LastFlights(const BoardLayout& layout, const Placed<FlightJobRow>& job,
                                   std::size_t count) {
  HR_CHECK(job.index < std::size(layout.flights), job.index);
  return LastOf(layout.flights[job.index], job.row.blocks, count);
}

std::vector<PassRow> LastPasses(const BoardLayout& layout, const Placed<FlightJobRow>& job,
                                std::size_t count) {
  HR_CHECK(job.index < std::size(layout.passes), job.index);
  return LastOf(layout.passes[job.index], job.row.passes, count);
}

}  // namespace headrace::ipc
