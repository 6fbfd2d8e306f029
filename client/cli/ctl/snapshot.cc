#include "client/cli/ctl/snapshot.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <tuple>

namespace headrace::ctl {
namespace {

// A writer that lost its core in the middle of a row has it back within a few time slices.
constexpr int kLooksMax = 20;
constexpr auto kPause = std::chrono::milliseconds(1);

template <typename Row>
std::optional<Row> ReadPatiently(const ipc::BoardSlot<Row>& slot, std::size_t& rows_unread) {
  // Once a row was found stopped, the others of a stopped service need no patience.
  const int looks_max = rows_unread == 0 ? kLooksMax : 1;
  for (int look = 0; look < looks_max; ++look) {
    if (look > 0) std::this_thread::sleep_for(kPause);
    if (std::optional<Row> row = ipc::ReadRow(slot)) return row;
  }
  ++rows_unread;
  return std::nullopt;
}

template <typename Row, std::size_t N, typename InUse>
std::vector<Row> ReadTable(const ipc::BoardSlot<Row> (&table)[N], std::size_t& rows_unread,
                           InUse in_use) {
  std::vector<Row> rows;
  for (const ipc::BoardSlot<Row>& slot : table) {
    const std::optional<Row> row = ReadPatiently(slot, rows_unread);
    if (row && in_use(*row)) rows.push_back(*row);
  }
  return rows;
}

template <typename Row, typename Key>
void SortBy(std::vector<Row>& rows, Key key) {
  std::sort(rows.begin(), rows.end(),
            [key](const Row& left, const Row& right) { return key(left) < key(right); });
}

}  // namespace

const ipc::JobRow* Snapshot::FindJob(std::uint32_t id) const {
  const auto found =
      std::find_if(jobs.begin(), jobs.end(), [id](const ipc::JobRow& job) { return job.id == id; });
  return found != jobs.end() ? &*found : nullptr;
}

const ipc::LaneRow* Snapshot::FindLane(std::size_t index) const {
  const auto found = std::find_if(lanes.begin(), lanes.end(),
                                  [index](const Lane& lane) { return lane.index == index; });
  return found != lanes.end() ? &found->row : nullptr;
}

const ipc::PlanRow* Snapshot::FindPlan(std::uint32_t job_id) const {
  const auto found = std::find_if(plans.begin(), plans.end(), [job_id](const ipc::PlanRow& plan) {
    return plan.job_id == job_id;
  });
  return found != plans.end() ? &*found : nullptr;
}

Snapshot TakeSnapshot(const ipc::BoardLayout& layout, TimeNs now_ns) {
  Snapshot snapshot;
  snapshot.now_ns = now_ns;
  std::size_t& unread = snapshot.rows_unread;
  if (const auto row = ReadPatiently(layout.service, unread)) snapshot.service = *row;
  if (const auto row = ReadPatiently(layout.counters, unread)) snapshot.counters = *row;
  snapshot.jobs =
      ReadTable(layout.jobs, unread, [](const ipc::JobRow& row) { return row.id != 0; });
  snapshot.ranks =
      ReadTable(layout.ranks, unread, [](const ipc::RankRow& row) { return row.job_id != 0; });
  snapshot.queue =
      ReadTable(layout.queue, unread, [](const ipc::QueueRow& row) { return row.block != 0; });
  snapshot.events =
      ReadTable(layout.events, unread, [](const ipc::EventRow& row) { return row.number != 0; });
  snapshot.plans =
      ReadTable(layout.plans, unread, [](const ipc::PlanRow& row) { return row.job_id != 0; });
  snapshot.plan_blocks = ReadTable(layout.plan_blocks, unread,
                                   [](const ipc::PlanBlockRow& row) { return row.job_id != 0; });
  snapshot.shares =
      ReadTable(layout.shares, unread, [](const ipc::ShareRow& row) { return row.job_id != 0; });
  for (std::size_t i = 0; i < ipc::kLaneRowsMax; ++i) {
    const auto row = ReadPatiently(layout.lanes[i], unread);
    if (row && row->in_use != 0) snapshot.lanes.push_back({i, *row});
  }
  for (std::size_t i = 0; i < ipc::kGpuRowsMax; ++i) {
    const auto row = ReadPatiently(layout.gpus[i], unread);
    if (row && row->in_use != 0) snapshot.gpus.push_back({i, *row});
  }
  SortBy(snapshot.jobs, [](const ipc::JobRow& row) { return row.id; });
  SortBy(snapshot.ranks, [](const ipc::RankRow& row) { return std::tuple(row.job_id, row.rank); });
  SortBy(snapshot.queue, [](const ipc::QueueRow& row) {
    return std::tuple(row.job_id, row.iteration, row.block, row.stage);
  });
  SortBy(snapshot.plans, [](const ipc::PlanRow& row) { return row.job_id; });
  SortBy(snapshot.plan_blocks,
         [](const ipc::PlanBlockRow& row) { return std::tuple(row.job_id, row.index); });
  SortBy(snapshot.shares,
         [](const ipc::ShareRow& row) { return std::tuple(row.lane, row.job_id); });
  SortBy(snapshot.events, [](const ipc::EventRow& row) { return row.number; });
  return snapshot;
}

Result<Snapshot> ReadBoard(const std::string& path) {
  Result<ipc::BoardView> view = ipc::BoardView::Open(path);
  if (!view) {
    if (view.error().code() != Code::kNotFound) return view.error();
    return Error(Code::kUnavailable,
                 view.error().text() +
                     ": no service writes this board; start headraced, or name its board with "
                     "--board or HEADRACE_BOARD");
  }
  return TakeSnapshot(view->layout(), MonotonicNow());
}

}  // namespace headrace::ctl
