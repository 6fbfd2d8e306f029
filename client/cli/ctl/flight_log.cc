#include "client/cli/ctl/flight_log.h"

#include <algorithm>
#include <optional>

namespace headrace::ctl {
namespace {

// The numbered rows of one place, oldest first; what stands in the middle of being written, and is
// counted, was about to be overwritten.
template <typename Row, std::size_t N>
std::vector<Row> ReadRing(const ipc::BoardSlot<Row> (&ring)[N], std::size_t& rows_unread) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < N; ++i) {
    const std::optional<Row> row = ipc::ReadRow(ring[i]);
    if (!row) ++rows_unread;
    if (row && row->number != 0 && (row->number - 1) % N == i) rows.push_back(*row);
  }
  std::ranges::sort(rows, {}, &Row::number);
  return rows;
}

// Why blocks failed: beside their rows, at the same places.
void ReadCauses(const ipc::BoardLayout& layout, std::size_t place, FlightJob& job) {
  for (const ipc::FlightRow& block : job.blocks) {
    if (block.code == 0) continue;
    const std::size_t at = (block.number - 1) % ipc::kFlightRowsMax;
    const std::optional<ipc::FlightCauseRow> cause = ipc::ReadRow(layout.flight_causes[place][at]);
    // Else a later block has taken its place just now.
    if (cause && cause->number == block.number) {
      job.causes.emplace(block.number, ipc::GetText(cause->text));
    }
  }
  const std::optional<ipc::FlightEndRow> end = ipc::ReadRow(layout.flight_ends[place]);
  if (!end || end->job_id != job.row.job_id) return;
  job.code = end->code;
  job.cause = ipc::GetText(end->cause);
}

template <typename Row>
std::uint64_t Overwritten(const std::vector<Row>& rows) {
  return rows.empty() ? 0 : rows.front().number - 1;
}

}  // namespace

std::uint64_t FlightJob::blocks_overwritten() const { return Overwritten(blocks); }
std::uint64_t FlightJob::passes_overwritten() const { return Overwritten(passes); }

std::string_view FlightJob::CauseOf(const ipc::FlightRow& block) const {
  const auto found = causes.find(block.number);
  return found == causes.end() ? std::string_view() : std::string_view(found->second);
}

std::int64_t FlightLog::UnixTime(TimeNs time_ns) const { return snapshot.UnixTime(time_ns); }

std::set<std::uint32_t> FlightLog::OwnersOf(std::string_view job) const {
  std::set<std::uint32_t> owners;
  for (const FlightJob& each : jobs) {
    if (each.name() == job) owners.insert(each.row.owner_uid);
  }
  return owners;
}

FlightLog ReadFlightLogFrom(const ipc::BoardLayout& layout, TimeNs now_ns) {
  FlightLog log{.snapshot = TakeSnapshot(layout, now_ns), .jobs = {}};
  std::size_t& unread = log.snapshot.rows_unread;
  for (std::size_t place = 0; place < ipc::kFlightJobsMax; ++place) {
    const std::optional<ipc::FlightJobRow> row = ipc::ReadRow(layout.flight_jobs[place]);
    if (!row) ++unread;
    if (!row || row->job_id == 0) continue;
    FlightJob job{.row = *row,
                  .blocks = ReadRing(layout.flights[place], unread),
                  .passes = ReadRing(layout.passes[place], unread),
                  .causes = {},
                  .cause = {}};
    ReadCauses(layout, place, job);
    // Another job may have taken the place meanwhile.
    const std::optional<ipc::FlightJobRow> after = ipc::ReadRow(layout.flight_jobs[place]);
    if (after && after->job_id == row->job_id) log.jobs.push_back(std::move(job));
  }
  std::ranges::stable_sort(log.jobs, {}, [](const FlightJob& job) { return job.row.opened_ns; });
  return log;
}

Result<FlightLog> ReadFlightLog(const std::string& path, std::optional<std::uint32_t> uid) {
  Result<ipc::BoardView> view = ipc::BoardView::Open(path);
  if (!view) {
    if (view.error().code() != Code::kNotFound) return view.error();
    return Error(Code::kUnavailable,
                 view.error().text() +
                     ": no service has left its records here; --board or HEADRACE_BOARD names the "
                     "board of a service, and --previous the one before it");
  }
  FlightLog log = ReadFlightLogFrom(view->layout(), MonotonicNow());
  if (uid) {
    KeepJobsOf(log.snapshot, *uid);
    std::erase_if(log.jobs, [uid](const FlightJob& job) { return job.row.owner_uid != *uid; });
  }
  return log;
}

}  // namespace headrace::ctl
