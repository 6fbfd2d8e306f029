#include "client/cli/replay/plan_watch.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace headrace::replay {

Result<PlanWatch> PlanWatch::Open(const std::string& board_path, std::string job) {
  Result<ipc::BoardView> view = ipc::BoardView::Open(board_path);
  if (!view) {
    return Error(view.error().code(),
                 view.error().text() + ": name the board of the service with --board");
  }
  return PlanWatch(std::move(view).value(), std::move(job));
}

std::uint32_t PlanWatch::JobId() const {
  std::uint32_t id = 0;
  for (const auto& slot : view_.layout().jobs) {
    const std::optional<ipc::JobRow> row = ipc::ReadRow(slot);
    const bool is_ours =
        row && row->id != 0 && row->owner_uid == ::geteuid() && ipc::GetText(row->name) == job_;
    if (is_ours) id = std::max(id, row->id);
  }
  return id;
}

std::optional<ipc::PlanRow> PlanWatch::Plan() const {
  const std::uint32_t id = JobId();
  if (id == 0) return std::nullopt;
  for (const auto& slot : view_.layout().plans) {
    std::optional<ipc::PlanRow> row = ipc::ReadRow(slot);
    if (row && row->job_id == id) return row;
  }
  return std::nullopt;
}

std::vector<ipc::PlanBlockRow> PlanWatch::Blocks() const {
  const std::uint32_t id = JobId();
  std::vector<ipc::PlanBlockRow> blocks;
  if (id == 0) return blocks;
  for (const auto& slot : view_.layout().plan_blocks) {
    const std::optional<ipc::PlanBlockRow> row = ipc::ReadRow(slot);
    if (row && row->job_id == id) blocks.push_back(*row);
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const auto& left, const auto& right) { return left.index < right.index; });
  return blocks;
}

std::vector<ipc::LaneRow> PlanWatch::Lanes() const {
  std::vector<ipc::LaneRow> lanes;
  for (const auto& slot : view_.layout().lanes) {
    const std::optional<ipc::LaneRow> row = ipc::ReadRow(slot);
    if (row && row->in_use != 0) lanes.push_back(*row);
  }
  return lanes;
}

}  // namespace headrace::replay
