#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"
#include "client/cli/ctl/words.h"
#include "ipc/base/error.h"

namespace headrace::ctl {
namespace {

std::string_view NameOfCode(const ipc::EventRow& event) {
  return event.code < kCodesCount ? CodeName(static_cast<Code>(event.code)) : "unknown";
}

}  // namespace

std::string EventsTable(const Snapshot& snapshot, bool with_header) {
  Table table({{"NUMBER", Align::kRight}, {"TIME"}, {"CODE"}, {"JOB"}, {"EVENT"}});
  for (const ipc::EventRow& event : snapshot.events) {
    table.Add({std::to_string(event.number), FormatUtc(event.at_unix_ns),
               std::string(NameOfCode(event)),
               event.job_id != 0 ? JobName(event.job_id, snapshot) : "",
               std::string(ipc::GetText(event.text))});
  }
  return table.Render(with_header);
}

Json EventsJson(const Snapshot& snapshot) {
  Json events = Json::array();
  for (const ipc::EventRow& event : snapshot.events) {
    events.push_back({{"number", event.number},
                      {"at_unix_ns", event.at_unix_ns},
                      {"code", NameOfCode(event)},
                      {"job_id", event.job_id},
                      {"text", JsonText(ipc::GetText(event.text))}});
  }
  return {{"rows_unread", snapshot.rows_unread}, {"events", std::move(events)}};
}

std::string JsonText(std::string_view text) {
  // nlohmann refuses to dump what is not UTF-8, and a text field may end within a character.
  const std::string dumped = nlohmann::json(std::string(text))
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(dumped).get<std::string>();
}

}  // namespace headrace::ctl
