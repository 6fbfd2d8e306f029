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
  free.pop_back();
  return row;
}

void BoardWriter::FreeRow(std::vector<std::uint16_t>& free, std::uint16_t row,
                          std::size_t rows_max) {
  HR_CHECK(row < rows_max && free.size() < rows_max, row, free.size());
  free.push_back(row);
}

std::uint16_t BoardWriter::ClaimQueueRow() {
  const std::uint16_t row = ClaimRow(free_queue_);
  if (row == kNoRow) ++counters.queue_rows_left_out;
  return row;
}

void BoardWriter::Write(std::uint16_t row, const ipc::JobRow& job) {
  if (row != kNoRow) ipc::WriteRow(layout_.jobs[row], job);
}

void BoardWriter::Write(std::uint16_t row, const ipc::RankRow& rank) {
  if (row != kNoRow) ipc::WriteRow(layout_.ranks[row], rank);
}

void BoardWriter::Write(std::uint16_t row, const ipc::QueueRow& stage) {
  if (row != kNoRow) ipc::WriteRow(layout_.queue[row], stage);
}

void BoardWriter::Write(std::uint16_t row, const ipc::PlanRow& plan) {
  if (row != kNoRow) ipc::WriteRow(layout_.plans[row], plan);
}

void BoardWriter::Write(std::uint16_t row, const ipc::PlanBlockRow& block) {
  if (row != kNoRow) ipc::WriteRow(layout_.plan_blocks[row], block);
}

void BoardWriter::Write(std::uint16_t row, const ipc::ShareRow& share) {
  if (row != kNoRow) ipc::WriteRow(layout_.shares[row], share);
}

void BoardWriter::WriteLane(std::uint8_t lane, const ipc::LaneRow& row) {
  HR_CHECK(lane < ipc::kLaneRowsMax, lane);
  ipc::WriteRow(layout_.lanes[lane], row);
}

void BoardWriter::FreeJobRow(std::uint16_t row) {
  if (row == kNoRow) return;
  ipc::WriteRow(layout_.jobs[row], ipc::JobRow{});
  FreeRow(free_jobs_, row, ipc::kJobRowsMax);
}

void BoardWriter::FreeRankRow(std::uint16_t row) {
  if (row == kNoRow) return;
  ipc::WriteRow(layout_.ranks[row], ipc::RankRow{});
  FreeRow(free_ranks_, row, ipc::kRankRowsMax);
}

void BoardWriter::FreeQueueRow(std::uint16_t row) {
  if (row == kNoRow) return;
  ipc::WriteRow(layout_.queue[row], ipc::QueueRow{});
  FreeRow(free_queue_, row, ipc::kQueueRowsMax);
}

void BoardWriter::FreePlanRow(std::uint16_t row) {
  if (row == kNoRow) return;
  ipc::WriteRow(layout_.plans[row], ipc::PlanRow{});
  FreeRow(free_plans_, row, ipc::kPlanRowsMax);
}

void BoardWriter::FreePlanBlockRow(std::uint16_t row) {
  if (row == kNoRow) return;
  ipc::WriteRow(layout_.plan_blocks[row], ipc::PlanBlockRow{});
  FreeRow(free_plan_blocks_, row, ipc::kPlanBlockRowsMax);
}

void BoardWriter::FreeShareRow(std::uint16_t row) {
  if (row == kNoRow) return;
  ipc::WriteRow(layout_.shares[row], ipc::ShareRow{});
  FreeRow(free_shares_, row, ipc::kShareRowsMax);
}

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
