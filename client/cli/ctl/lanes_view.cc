#include <fmt/format.h>

#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"

namespace headrace::ctl {

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
               {"LAST", Align::kRight},
               {"LAST RATE", Align::kRight}});
  for (const Lane& lane : snapshot.lanes) {
    const ipc::LaneRow& row = lane.row;
    table.Add({std::string(ipc::GetText(row.name)), std::string(ipc::GetText(row.transport)),
               std::to_string(row.threads), FormatBytes(row.credit_bytes),
               FormatBytes(row.in_flight_bytes), std::to_string(row.in_flight_stages),
               std::to_string(row.queued_stages), std::to_string(row.stages_ended),
               FormatBytes(row.bytes_moved),
               FormatShare(row.busy_ns, snapshot.now_ns - snapshot.service.started_ns),
               row.last_ns > 0 ? FormatBytes(row.last_bytes) : "",
               FormatRate(row.last_bytes, row.last_ns)});
  }
  return table.Render(with_header);
}

Json LanesJson(const Snapshot& snapshot) {
  Json lanes = Json::array();
  const TimeNs uptime_ns = snapshot.now_ns - snapshot.service.started_ns;
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
                     {"busy_ns", row.busy_ns},
                     {"busy_share", uptime_ns > 0 ? Json(static_cast<double>(row.busy_ns) /
                                                         static_cast<double>(uptime_ns))
                                                  : Json(nullptr)},
                     {"last_bytes", row.last_bytes},
                     {"last_ns", row.last_ns},
                     {"last_gb_per_s", measured ? Json(static_cast<double>(row.last_bytes) /
                                                       static_cast<double>(row.last_ns))
                                                : Json(nullptr)}});
  }
  return {{"rows_unread", snapshot.rows_unread}, {"lanes", std::move(lanes)}};
}

}  // namespace headrace::ctl
