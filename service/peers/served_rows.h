// The board's table of jobs that this service sums for as a parameter server, with what their sums
// leave out here.
//
// Peers' thread; the lanes between nodes count what is left out meanwhile.
#pragma once

#include <span>
#include <vector>

#include "ipc/board.h"
#include "service/cluster/followed_jobs.h"
#include "transport/exchange/served_residuals.h"

namespace headrace::service {

class ServedRows {
 public:
  // Both outlive it. Null: nothing is kept here. No slots: nobody looks.
  ServedRows(std::span<ipc::BoardSlot<ipc::ServedRow>> slots,
             const transport::ServedResiduals* residuals)
      : slots_(slots), residuals_(residuals) {}

  // Writes the rows that have changed.
  void Show(const FollowedJobs::Jobs& jobs);

 private:
  std::span<ipc::BoardSlot<ipc::ServedRow>> slots_;
  const transport::ServedResiduals* residuals_;
  std::vector<ipc::ServedRow> shown_;
};

}  // namespace headrace::service
