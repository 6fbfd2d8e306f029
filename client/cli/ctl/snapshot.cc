#include "client/cli/ctl/snapshot.h"

#include <algorithm>

namespace headrace::ctl {
namespace {

constexpr int kLooksMax = 20;

}  // namespace

Snapshot TakeSnapshot(const ipc::BoardLayout& layout, TimeNs now_ns) {
  return ipc::ReadBoard(layout, now_ns, {.looks_max = kLooksMax, .with_plan_blocks = true});
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

void KeepJobsOf(Snapshot& snapshot, std::uint32_t uid) {
  std::set<std::uint32_t> others;
  for (const ipc::JobRow& job : snapshot.jobs) {
    if (job.owner_uid != uid) others.insert(job.id);
  }
  for (const auto& flight : snapshot.flights) {
    if (flight.row.owner_uid != uid) others.insert(flight.row.job_id);
  }
  const auto is_others = [&others](const auto& row) { return others.contains(row.job_id); };
  std::erase_if(snapshot.jobs, [uid](const ipc::JobRow& job) { return job.owner_uid != uid; });
  std::erase_if(snapshot.flights, [uid](const auto& each) { return each.row.owner_uid != uid; });
  std::erase_if(snapshot.ranks, is_others);
  std::erase_if(snapshot.queue, is_others);
  std::erase_if(snapshot.events, is_others);
  std::erase_if(snapshot.plans, is_others);
  std::erase_if(snapshot.plan_blocks, is_others);
  std::erase_if(snapshot.shares, is_others);
  std::erase_if(snapshot.flight_ends, is_others);
}

std::set<std::uint32_t> OwnersOf(const Snapshot& snapshot, std::string_view job) {
  std::set<std::uint32_t> owners;
  for (const ipc::JobRow& row : snapshot.jobs) {
    if (ipc::GetText(row.name) == job) owners.insert(row.owner_uid);
  }
  return owners;
}

}  // namespace headrace::ctl
