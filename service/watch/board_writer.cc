#include "service/watch/board_writer.h"

#include <algorithm>
#include <cstring>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// Lowest row on top, so that tables fill from the front.
std::vector<std::uint16_t> AllRows(std::size_t count) {
  std::vector<std::uint16_t> rows(count);
  for (std::size_t i = 0; i < count; ++i) rows[i] = static_cast<std::uint16_t>(count - 1 - i);
  return rows;
}

template <typename Row, std::size_t kRows>
void WriteIn(ipc::BoardSlot<Row> (&table)[kRows], std::uint16_t row, const Row& value) {
  if (row == kNoRow) return;
  HR_CHECK(row < kRows, row, kRows);
  ipc::WriteRow(table[row], value);
}

template <typename Row, std::size_t kRows>
void FreeIn(ipc::BoardSlot<Row> (&table)[kRows], std::uint16_t row,
            std::vector<std::uint16_t>& free) {
  if (row == kNoRow) return;
  HR_CHECK(free.size() < kRows, row, free.size());
  WriteIn(table, row, Row{});
  free.push_back(row);
}

}  // namespace

BoardWriter::BoardWriter(ipc::BoardLayout& layout)
    : layout_(layout),
      free_jobs_(AllRows(ipc::kJobRowsMax)),
      free_ranks_(AllRows(ipc::kRankRowsMax)),
      free_queue_(AllRows(ipc::kQueueRowsMax)),
      free_plans_(AllRows(ipc::kPlanRowsMax)),
      free_plan_blocks_(AllRows(ipc::kPlanBlockRowsMax)),
      free_shares_(AllRows(ipc::kShareRowsMax)) {}

std::uint16_t BoardWriter::ClaimRow(std::vector<std::uint16_t>& free) {
  if (free.empty()) return kNoRow;
  const std::uint16_t row = free.back();
  HR_CHECK(row != kNoRow, free.size());
  free.pop_back();
  return row;
}

std::uint16_t BoardWriter::ClaimQueueRow() {
  const std::uint16_t row = ClaimRow(free_queue_);
  if (row == kNoRow) ++counters.queue_rows_left_out;
  return row;
}

void BoardWriter::Write(std::uint16_t row, const ipc::JobRow& job) {
  WriteIn(layout_.jobs, row, job);
}

void BoardWriter::Write(std::uint16_t row, const ipc::RankRow& rank) {
  WriteIn(layout_.ranks, row, rank);
}

void BoardWriter::Write(std::uint16_t row, const ipc::QueueRow& stage) {
  WriteIn(layout_.queue, row, stage);
}

void BoardWriter::Write(std::uint16_t row, const ipc::PlanRow& plan) {
  WriteIn(layout_.plans, row, plan);
}

void BoardWriter::Write(std::uint16_t row, const ipc::PlanBlockRow& block) {
  WriteIn(layout_.plan_blocks, row, block);
}

void BoardWriter::Write(std::uint16_t row, const ipc::ShareRow& share) {
  WriteIn(layout_.shares, row, share);
}

void BoardWriter::WriteLane(std::uint8_t lane, const ipc::LaneRow& row) {
  HR_CHECK(lane < ipc::kLaneRowsMax, lane);
  ipc::WriteRow(layout_.lanes[lane], row);
}

void BoardWriter::FreeJobRow(std::uint16_t row) { FreeIn(layout_.jobs, row, free_jobs_); }

void BoardWriter::FreeRankRow(std::uint16_t row) { FreeIn(layout_.ranks, row, free_ranks_); }

void BoardWriter::FreeQueueRow(std::uint16_t row) { FreeIn(layout_.queue, row, free_queue_); }

void BoardWriter::FreePlanRow(std::uint16_t row) { FreeIn(layout_.plans, row, free_plans_); }

void BoardWriter::FreePlanBlockRow(std::uint16_t row) {
  FreeIn(layout_.plan_blocks, row, free_plan_blocks_);
}

void BoardWriter::FreeShareRow(std::uint16_t row) { FreeIn(layout_.shares, row, free_shares_); }

void BoardWriter::ClearFlight(std::uint16_t place, const ipc::FlightJobRow& former) {
  HR_CHECK(place < ipc::kFlightJobsMax, place);
  ipc::WriteRow(layout_.flight_jobs[place], ipc::FlightJobRow{});
  ipc::WriteRow(layout_.flight_ends[place], ipc::FlightEndRow{});
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(former.blocks, ipc::kFlightRowsMax); ++i) {
    ipc::WriteRow(layout_.flights[place][i], ipc::FlightRow{});
  }
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(former.passes, ipc::kPassRowsMax); ++i) {
    ipc::WriteRow(layout_.passes[place][i], ipc::PassRow{});
  }
}

void BoardWriter::WriteFlight(std::uint16_t place, const ipc::FlightJobRow& job) {
  HR_CHECK(place < ipc::kFlightJobsMax && job.job_id != 0, place);
  ipc::WriteRow(layout_.flight_jobs[place], job);
}

void BoardWriter::WriteFlight(std::uint16_t place, const ipc::FlightRow& block) {
  HR_CHECK(place < ipc::kFlightJobsMax && block.number > 0, place, block.number);
  ipc::WriteRow(layout_.flights[place][(block.number - 1) % ipc::kFlightRowsMax], block);
}

void BoardWriter::WriteFlight(std::uint16_t place, const ipc::PassRow& pass) {
  HR_CHECK(place < ipc::kFlightJobsMax && pass.number > 0, place, pass.number);
  ipc::WriteRow(layout_.passes[place][(pass.number - 1) % ipc::kPassRowsMax], pass);
}

void BoardWriter::WriteFlight(std::uint16_t place, const ipc::FlightCauseRow& cause) {
  HR_CHECK(place < ipc::kFlightJobsMax && cause.number > 0, place, cause.number);
  ipc::WriteRow(layout_.flight_causes[place][(cause.number - 1) % ipc::kFlightRowsMax], cause);
}

void BoardWriter::WriteFlight(std::uint16_t place, const ipc::FlightEndRow& end) {
  HR_CHECK(place < ipc::kFlightJobsMax && end.job_id != 0, place);
  ipc::WriteRow(layout_.flight_ends[place], end);
}

std::int64_t BoardWriter::UnixTime(TimeNs now) const {
  const std::optional<ipc::ServiceRow> service = ipc::ReadRow(layout_.service);
  if (!service || service->started_unix_ns == 0) return 0;
  return service->started_unix_ns + (now - service->started_ns);
}

void BoardWriter::PublishCounters() {
  if (std::memcmp(&counters, &published_, sizeof counters) == 0) return;
  published_ = counters;
  ipc::WriteRow(layout_.counters, counters);
}

}  // namespace headrace::service
