#include "client/cli/ctl/events_view.h"

#include <fmt/format.h>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/error.h"
#include "ipc/base/foreign_text.h"

namespace headrace::ctl {
namespace {

std::string_view NameOfCode(const ipc::EventRow& event) {
  return event.code < kCodesCount ? CodeName(static_cast<Code>(event.code)) : "unknown";
}

std::string JobOf(const ipc::EventRow& event, const Snapshot& snapshot) {
  return event.job_id != 0 ? JobName(event.job_id, snapshot) : "";
}

}  // namespace

bool IsEventOf(const ipc::EventRow& event, const Snapshot& snapshot, std::string_view job) {
  return job.empty() || JobOf(event, snapshot) == job;
}

Snapshot NewestEvents(const Snapshot& snapshot, std::string_view job, std::uint64_t count) {
  Snapshot newest = snapshot;
  if (count == 0) return newest;
  std::erase_if(newest.events,
                [&](const ipc::EventRow& event) { return !IsEventOf(event, snapshot, job); });
  if (newest.events.size() > count) {
    newest.events.erase(newest.events.begin(),
                        newest.events.end() - static_cast<std::ptrdiff_t>(count));
  }
  return newest;
}

std::string EventsTable(const Snapshot& snapshot, std::string_view job, bool with_header) {
  Table table({{"NUMBER", Align::kRight}, {"TIME"}, {"CODE"}, {"JOB"}, {"EVENT"}});
  for (const ipc::EventRow& event : snapshot.events) {
    if (!IsEventOf(event, snapshot, job)) continue;
    table.Add({std::to_string(event.number), FormatUtc(event.at_unix_ns),
               std::string(NameOfCode(event)), JobOf(event, snapshot),
               std::string(ipc::GetText(event.text))});
  }
  return table.Render(with_header);
}

Json EventJson(const ipc::EventRow& event) {
  return {{"number", event.number},
          {"at_unix_ns", event.at_unix_ns},
          {"code", NameOfCode(event)},
          {"job_id", event.job_id},
          {"text", JsonText(ipc::GetText(event.text))}};
}

std::string EventLine(const ipc::EventRow& event, const Snapshot& snapshot) {
  const std::string job = JobOf(event, snapshot);
  return fmt::format("{:>6}  {}  {:<17}  {:<12}  {}\n", event.number, FormatUtc(event.at_unix_ns),
                     NameOfCode(event), job.empty() ? "-" : Printable(job),
                     Printable(ipc::GetText(event.text)));
}

Json EventsJson(const Snapshot& snapshot, std::string_view job) {
  Json events = Json::array();
  for (const ipc::EventRow& event : snapshot.events) {
    if (IsEventOf(event, snapshot, job)) events.push_back(EventJson(event));
  }
  return {{"rows_unread", snapshot.rows_unread}, {"events", std::move(events)}};
}

EventsFollower::News EventsFollower::Update(const Snapshot& snapshot) {
  News news;
  news.is_new_service = has_looked_ && snapshot.service.started_ns != service_started_ns_;
  if (news.is_new_service) last_number_ = 0;
  const bool counts = has_looked_;
  has_looked_ = true;
  service_started_ns_ = snapshot.service.started_ns;
  for (const ipc::EventRow& event : snapshot.events) {
    if (event.number <= last_number_) continue;
    // Rows that could not be read are missing in the middle too, and come with no later look.
    if (counts && event.number > last_number_ + 1) news.lost += event.number - last_number_ - 1;
    last_number_ = event.number;
    news.events.push_back(event);
  }
  return news;
}

std::string JsonText(std::string_view text) {
  // nlohmann refuses to dump what is not UTF-8, and a text field may end within a character.
  const std::string dumped = nlohmann::json(std::string(text))
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(dumped).get<std::string>();
}

}  // namespace headrace::ctl
