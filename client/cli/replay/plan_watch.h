// Reads one job's plan from the board while the job is played.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ipc/base/result.h"
#include "ipc/board.h"

namespace headrace::replay {

// Not thread-safe; each rank has its own.
class PlanWatch {
 public:
  // `job` is one of this user's.
  static Result<PlanWatch> Open(const std::string& board_path, std::string job);

  // The job's plan as it stands; nothing before it is on the board.
  std::optional<ipc::PlanRow> Plan() const;
  // Its blocks, in dispatch order.
  std::vector<ipc::PlanBlockRow> Blocks() const;
  std::vector<ipc::LaneRow> Lanes() const;

 private:
  PlanWatch(ipc::BoardView view, std::string job) : view_(std::move(view)), job_(std::move(job)) {}

  // The newest job of that name, because one that failed before may stand beside it; 0: none yet.
  std::uint32_t JobId() const;

  ipc::BoardView view_;
  std::string job_;
};

}  // namespace headrace::replay
