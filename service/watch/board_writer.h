// Dispatch's access to the board: assigns rows, writes them whole, clears them. Dispatch only.
//
// The board is only a view: when its tables are full the service continues and counts the missing
// rows.
#pragma once

#include <cstdint>
#include <vector>

#include "ipc/base/clock.h"
#include "ipc/board.h"

namespace headrace::service {

inline constexpr std::uint16_t kNoRow = UINT16_MAX;

class BoardWriter {
 public:
  // The layout outlives the writer.
  explicit BoardWriter(ipc::BoardLayout& layout);

  // Row numbers, or kNoRow when the table is full. Writing and freeing kNoRow does nothing.
  std::uint16_t ClaimJobRow() { return ClaimRow(free_jobs_); }
  std::uint16_t ClaimRankRow() { return ClaimRow(free_ranks_); }
  std::uint16_t ClaimQueueRow();
  std::uint16_t ClaimPlanRow() { return ClaimRow(free_plans_); }
  std::uint16_t ClaimPlanBlockRow() { return ClaimRow(free_plan_blocks_); }
  std::uint16_t ClaimShareRow() { return ClaimRow(free_shares_); }

  void Write(std::uint16_t row, const ipc::JobRow& job);
  void Write(std::uint16_t row, const ipc::RankRow& rank);
  void Write(std::uint16_t row, const ipc::QueueRow& stage);
  void Write(std::uint16_t row, const ipc::PlanRow& plan);
  void Write(std::uint16_t row, const ipc::PlanBlockRow& block);
  void Write(std::uint16_t row, const ipc::ShareRow& share);
  void WriteLane(std::uint8_t lane, const ipc::LaneRow& row);
  void FreeJobRow(std::uint16_t row);
  void FreeRankRow(std::uint16_t row);
  void FreeQueueRow(std::uint16_t row);
  void FreePlanRow(std::uint16_t row);
  void FreePlanBlockRow(std::uint16_t row);
  void FreeShareRow(std::uint16_t row);

  // ---- the flight recorder's tables; the recorder gives out their places ----
  // Frees the rows that the place's former job wrote, and its own.
  void ClearFlight(std::uint16_t place, const ipc::FlightJobRow& former);
  void WriteFlight(std::uint16_t place, const ipc::FlightJobRow& job);
  // In the ring's row of that number.
  void WriteFlight(std::uint16_t place, const ipc::FlightRow& block);
  void WriteFlight(std::uint16_t place, const ipc::PassRow& pass);
  // Why the block of that number failed; before its own row.
  void WriteFlight(std::uint16_t place, const ipc::FlightCauseRow& cause);
  void WriteFlight(std::uint16_t place, const ipc::FlightEndRow& end);

  // The unix time at `now`, by the clocks' difference when the service started; 0 while its row is
  // not written.
  std::int64_t UnixTime(TimeNs now) const;

  // Counters are changed in place and published by PublishCounters when they differ.
  ipc::CountersRow counters{};
  void PublishCounters();

 private:
  static std::uint16_t ClaimRow(std::vector<std::uint16_t>& free);

  ipc::BoardLayout& layout_;
  ipc::CountersRow published_{};
  std::vector<std::uint16_t> free_jobs_;
  std::vector<std::uint16_t> free_ranks_;
  std::vector<std::uint16_t> free_queue_;
  std::vector<std::uint16_t> free_plans_;
  std::vector<std::uint16_t> free_plan_blocks_;
  std::vector<std::uint16_t> free_shares_;
};

}  // namespace headrace::service
