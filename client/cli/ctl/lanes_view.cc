#include <fmt/format.h>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"
#include "ipc/base/age.h"

namespace headrace::ctl {
namespace {

std::string FormatMicroseconds(TimeNs time_ns) {
  return fmt::format("{:.1f} us", static_cast<double>(time_ns) / kMicrosecond);
}

std::uint64_t MovedOn(const Snapshot& snapshot, std::uint32_t lane) {
  std::uint64_t moved = 0;
  for (const ipc::ShareRow& share : snapshot.shares) {
    if (share.lane == lane) moved += share.bytes_moved;
  }
  return moved;
}

double ShareOf(const ipc::ShareRow& share, const Snapshot& snapshot) {
  const std::uint64_t all = MovedOn(snapshot, share.lane);
  return all > 0 ? static_cast<double>(share.bytes_moved) / static_cast<double>(all) : 0;
}

bool KnowsBusy(const ipc::LaneRow& row) { return row.busy_ns != ipc::kTimeUnknown; }

std::string BusyText(const ipc::LaneRow& row, const Snapshot& snapshot) {
  if (!KnowsBusy(row)) return "-";
  return FormatShare(row.busy_ns, snapshot.now_ns - snapshot.service.started_ns);
}

Json BusyShare(const ipc::LaneRow& row, const Snapshot& snapshot) {
  const TimeNs uptime_ns = snapshot.now_ns - snapshot.service.started_ns;
  if (!KnowsBusy(row) || uptime_ns <= 0) return nullptr;
  return static_cast<double>(row.busy_ns) / static_cast<double>(uptime_ns);
}

// Why there is a "-".
std::string BusyNotes(const Snapshot& snapshot) {
  std::string notes;
  for (const Lane& lane : snapshot.lanes) {
    if (KnowsBusy(lane.row)) continue;
    notes += fmt::format(
        "BUSY of {} is not known: NCCL does not say when bytes move and when it waits for another "
        "node\n",
        ipc::GetText(lane.row.name));
  }
  return notes;
}

}  // namespace

std::string LanesTable(const Snapshot& snapshot, bool with_header) {
  Table table({{"LANE"},
               {"TRANSPORT"},
               {"THREADS", Align::kRight},
               {"CREDIT", Align::kRight},
               {"IN FLIGHT", Align::kRight},
               {"STAGES", Align::kRight},
               {"QUEUED", Align::kRight},
               {"ENDED", Align::kRight},
               {"MOVED", Align::kRight},
               {"BUSY", Align::kRight},
               {"STARTUP", Align::kRight},
               {"LINE RATE", Align::kRight},
               {"RATE NOW", Align::kRight},
               {"DROPPED", Align::kRight}});
  for (const Lane& lane : snapshot.lanes) {
    const ipc::LaneRow& row = lane.row;
    table.Add({std::string(ipc::GetText(row.name)), std::string(ipc::GetText(row.transport)),
               std::to_string(row.threads), FormatBytes(row.credit_bytes),
               FormatBytes(row.in_flight_bytes), std::to_string(row.in_flight_stages),
               std::to_string(row.queued_stages), std::to_string(row.stages_ended),
               FormatBytes(row.bytes_moved), BusyText(row, snapshot),
               row.bytes_per_s > 0 ? FormatMicroseconds(row.startup_ns) : "",
               row.bytes_per_s > 0 ? FormatRate(row.bytes_per_s, kSecond) : "",
               FormatRate(RateNow(row, snapshot.now_ns), kSecond),
               std::to_string(row.messages_dropped)});
  }
  return table.Render(with_header) + BusyNotes(snapshot);
}

Json LanesJson(const Snapshot& snapshot) {
  Json lanes = Json::array();
  for (const Lane& lane : snapshot.lanes) {
    const ipc::LaneRow& row = lane.row;
    const bool measured = row.last_ns > 0;
    lanes.push_back({{"lane", JsonText(ipc::GetText(row.name))},
                     {"transport", JsonText(ipc::GetText(row.transport))},
                     {"threads", row.threads},
                     {"credit_bytes", row.credit_bytes},
                     {"in_flight_bytes", row.in_flight_bytes},
                     {"in_flight_stages", row.in_flight_stages},
                     {"queued_stages", row.queued_stages},
                     {"stages_ended", row.stages_ended},
                     {"bytes_moved", row.bytes_moved},
                     {"busy_ns", KnowsBusy(row) ? Json(row.busy_ns) : Json(nullptr)},
                     {"busy_share", BusyShare(row, snapshot)},
                     {"last_bytes", row.last_bytes},
                     {"last_ns", row.last_ns},
                     {"last_gb_per_s", measured ? Json(static_cast<double>(row.last_bytes) /
                                                       static_cast<double>(row.last_ns))
                                                : Json(nullptr)},
                     {"startup_ns", row.bytes_per_s > 0 ? Json(row.startup_ns) : Json(nullptr)},
                     {"bytes_per_s", row.bytes_per_s > 0 ? Json(row.bytes_per_s) : Json(nullptr)},
                     {"rate_bytes_per_s", RateNow(row, snapshot.now_ns)},
                     {"messages_dropped", row.messages_dropped}});
  }
  return {{"rows_unread", snapshot.rows_unread}, {"lanes", std::move(lanes)}};
}

std::string SharesTable(const Snapshot& snapshot, std::string_view lane, bool with_header) {
  Table table({{"LANE"},
               {"JOB"},
               {"WEIGHT", Align::kRight},
               {"PRIORITY", Align::kRight},
               {"LIMIT", Align::kRight},
               {"QUEUED", Align::kRight},
               {"STAGES", Align::kRight},
               {"IN FLIGHT", Align::kRight},
               {"ENDED", Align::kRight},
               {"MOVED", Align::kRight},
               {"SHARE", Align::kRight},
               {"WAITED", Align::kRight},
               {"MOVING", Align::kRight}});
  for (const ipc::ShareRow& share : snapshot.shares) {
    const std::string name = LaneName(share.lane, snapshot);
    if (!lane.empty() && name != lane) continue;
    const ipc::JobRow* job = snapshot.FindJob(share.job_id);
    table.Add(
        {name, JobName(share.job_id, snapshot), job != nullptr ? std::to_string(job->weight) : "",
         job != nullptr ? std::to_string(job->priority) : "",
         job != nullptr ? FormatRateLimit(job->limit_bytes_per_s) : "",
         std::to_string(share.queued_stages), std::to_string(share.in_flight_stages),
         FormatBytes(share.in_flight_bytes), std::to_string(share.stages_ended),
         FormatBytes(share.bytes_moved), fmt::format("{:.1f} %", 100 * ShareOf(share, snapshot)),
         FormatAge(share.waiting_ns), FormatAge(share.moving_ns)});
  }
  return table.Render(with_header);
}

Json SharesJson(const Snapshot& snapshot, std::string_view lane) {
  Json shares = Json::array();
  for (const ipc::ShareRow& share : snapshot.shares) {
    const std::string name = LaneName(share.lane, snapshot);
    if (!lane.empty() && name != lane) continue;
    const ipc::JobRow* job = snapshot.FindJob(share.job_id);
    shares.push_back({{"lane", JsonText(name)},
                      {"job", JsonText(JobName(share.job_id, snapshot))},
                      {"job_id", share.job_id},
                      {"weight", job != nullptr ? Json(job->weight) : Json(nullptr)},
                      {"priority", job != nullptr ? Json(job->priority) : Json(nullptr)},
                      {"queued_stages", share.queued_stages},
                      {"in_flight_stages", share.in_flight_stages},
                      {"in_flight_bytes", share.in_flight_bytes},
                      {"stages_ended", share.stages_ended},
                      {"bytes_moved", share.bytes_moved},
                      {"share", ShareOf(share, snapshot)},
                      {"waiting_ns", share.waiting_ns},
                      {"moving_ns", share.moving_ns}});
  }
  return {{"rows_unread", snapshot.rows_unread}, {"shares", std::move(shares)}};
}

}  // namespace headrace::ctl
