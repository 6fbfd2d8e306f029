// The board's rows of a job's plan: the plan, its blocks as predicted and as measured, and what the
// next block waits for.
//
// It reads jobs and never writes them. Owned by Plans, on dispatch's thread.
#pragma once

#include <cstdint>

#include "service/dispatch/job/job.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class PlanRows {
 public:
  explicit PlanRows(BoardWriter& board) : board_(board) {}

  // The job has a layout from now on.
  void Open(const Job& job);
  void Close(const Job& job);
  // Another plan is in force.
  void OnSwitched(const Job& job);
  void ShowPlan(const Job& job);
  // How the plan's blocks went in the iteration, which has ended.
  void ShowBlocks(const Job& job, std::uint64_t iteration);
  void ShowHead(const Job& job, TimeNs now);

 private:
  BoardWriter& board_;
};

}  // namespace headrace::service
