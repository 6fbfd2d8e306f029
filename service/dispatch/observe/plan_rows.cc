#include "service/dispatch/observe/plan_rows.h"

#include <vector>

#include "service/dispatch/observe/record.h"
#include "service/dispatch/observe/rows.h"

namespace headrace::service {

void PlanRows::Open(const Job& job) {
  job.record->plan.row = board_.ClaimPlanRow();
  job.record->plan.head_row = board_.ClaimQueueRow();
  ShowPlan(job);
}

void PlanRows::Close(const Job& job) {
  const PlanRecord& record = job.record->plan;
  for (const std::uint16_t row : record.block_rows) board_.FreePlanBlockRow(row);
  board_.FreeQueueRow(record.head_row);
  board_.FreePlanRow(record.row);
}

void PlanRows::OnSwitched(const Job& job) {
  std::vector<std::uint16_t>& rows = job.record->plan.block_rows;
  for (const std::uint16_t row : rows) board_.FreePlanBlockRow(row);
  rows.clear();
  for (std::size_t index = 0; index < job.gradients->plan()->blocks.size(); ++index) {
    const std::uint16_t row = board_.ClaimPlanBlockRow();
    if (row == kNoRow) break;
    rows.push_back(row);
  }
  ShowBlocks(job, 0);
  ShowPlan(job);
}

void PlanRows::ShowPlan(const Job& job) { board_.Write(job.record->plan.row, MakePlanRow(job)); }

void PlanRows::ShowBlocks(const Job& job, std::uint64_t iteration) {
  const Gradients& gradients = *job.gradients;
  if (gradients.plan() == nullptr) return;
  const std::vector<std::uint16_t>& rows = job.record->plan.block_rows;
  // The plan that moved the iteration may not be the one in force any more.
  const bool measured =
      iteration >= gradients.plan_from() &&
      job.measured.times->blocks(iteration).size() == gradients.plan()->blocks.size();
  for (std::uint32_t index = 0; index < rows.size(); ++index) {
    ipc::PlanBlockRow row = MakePlanBlockRow(job, *gradients.plan(), index);
    if (measured && iteration > 0) {
      const IterationTimes::BlockTimes& span = job.measured.times->blocks(iteration)[index];
      const TimeNs zero = job.measured.times->BackwardBegin(iteration);
      row.ready_ns = span.ready_ns - zero;
      row.begin_ns = span.begin_ns - zero;
      row.end_ns = span.end_ns - zero;
    }
    board_.Write(rows[index], row);
  }
}

void PlanRows::ShowHead(const Job& job, TimeNs now) {
  const Gradients& gradients = *job.gradients;
  PlanRecord& record = job.record->plan;
  if (job.gradients_failure || !gradients.AnyOpen()) {
    record.head_shown = {};
    return board_.Write(record.head_row, record.head_shown);
  }
  if (record.head_row == kNoRow) return;
  ipc::QueueRow row = MakeHeadRow(job, now);
  if (gradients.head_index() == 0 && job.in_force.paused) {
    row.reason = static_cast<std::uint32_t>(ipc::WaitReason::kPaused);
    row.wait_argument = job.in_force.paused_by;
  } else if (gradients.head_index() == 0 && job.hold.until_ns > now) {
    row.reason = static_cast<std::uint32_t>(job.hold.reason);
    row.wait_argument = job.hold.argument;
  }
  // It is shown again at every post; how long it has waited goes on.
  const ipc::QueueRow& before = record.head_shown;
  if (before.block == row.block && before.iteration == row.iteration) {
    row.posted_ns = before.posted_ns;
    const bool same = before.reason == row.reason && before.wait_argument == row.wait_argument;
    if (same) row.since_ns = before.since_ns;
  }
  record.head_shown = row;
  board_.Write(record.head_row, row);
}

}  // namespace headrace::service
