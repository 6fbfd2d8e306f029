// What the board shows of a job's plan.
#include <algorithm>

#include "service/dispatch/plan_flow.h"
#include "service/dispatch/rows.h"

namespace headrace::service {

void PlanFlow::TakeBlockRows(Job& job) {
  const std::size_t wanted = job.gradients->plan()->blocks.size();
  for (const std::uint16_t row : job.block_rows) board_.FreePlanBlockRow(row);
  job.block_rows.clear();
  for (std::size_t index = 0; index < wanted; ++index) {
    const std::uint16_t row = board_.TakePlanBlockRow();
    if (row == kNoRow) break;
    job.block_rows.push_back(row);
  }
  ShowBlocks(job, 0);
}

void PlanFlow::ShowBlocks(Job& job, std::uint64_t iteration) {
  const Gradients& gradients = *job.gradients;
  if (gradients.plan() == nullptr) return;
  // The plan that moved the iteration may not be the one in force any more.
  const bool measured = iteration >= gradients.plan_from() &&
                        job.times->blocks(iteration).size() == gradients.plan()->blocks.size();
  for (std::uint32_t index = 0; index < job.block_rows.size(); ++index) {
    ipc::PlanBlockRow row = MakePlanBlockRow(job, *gradients.plan(), index);
    if (measured && iteration > 0) {
      const IterationTimes::Span& span = job.times->blocks(iteration)[index];
      const TimeNs zero = job.times->BackwardBegin(iteration);
      row.ready_ns = span.ready_ns - zero;
      row.begin_ns = span.begin_ns - zero;
      row.end_ns = span.end_ns - zero;
    }
    board_.Write(job.block_rows[index], row);
  }
}

void PlanFlow::ShowPlan(Job& job) { board_.Write(job.plan_row, MakePlanRow(job)); }

void PlanFlow::ShowHead(Job& job, TimeNs now) {
  Gradients& gradients = *job.gradients;
  if (job.gradients_failure || !gradients.AnyOpen()) {
    job.head_shown = {};
    return board_.Write(job.head_row, job.head_shown);
  }
  if (job.head_row == kNoRow) return;
  ipc::QueueRow row = MakeHeadRow(job, now);
  if (gradients.head_index() == 0 && job.paused) {
    row.reason = static_cast<std::uint32_t>(ipc::WaitReason::kPaused);
    row.wait_argument = job.paused_by;
  } else if (gradients.head_index() == 0 && job.hold.until_ns > now) {
    row.reason = static_cast<std::uint32_t>(job.hold.reason);
    row.wait_argument = job.hold.argument;
  }
  // It is shown again at every post; how long it has waited goes on.
  const ipc::QueueRow& before = job.head_shown;
  if (before.block == row.block && before.iteration == row.iteration) {
    row.posted_ns = before.posted_ns;
    const bool same = before.reason == row.reason && before.wait_argument == row.wait_argument;
    if (same) row.since_ns = before.since_ns;
  }
  job.head_shown = row;
  board_.Write(job.head_row, row);
}

void PlanFlow::RemoveJob(Job& job) {
  if (!job.gradients) return;
  for (const std::uint16_t row : job.block_rows) board_.FreePlanBlockRow(row);
  board_.FreeQueueRow(job.head_row);
  board_.FreePlanRow(job.plan_row);
}

}  // namespace headrace::service
