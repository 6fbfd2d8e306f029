#include "service/watch/status_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/board_text.h"
#include "service/watch/status_parts.h"
#include "service/watch/utf8.h"

namespace headrace::service {
namespace {

Json ServiceJson(const ipc::BoardReading& reading) {
  const ipc::ServiceRow& row = reading.service;
  return {{"state", ipc::ServiceStateName(row.state)},
          {"version", JsonText(ipc::GetText(row.version))},
          {"pid", row.pid},
          {"uptime_s", JsonSeconds(reading.now_ns - row.started_ns)},
          {"reduce_target", JsonText(ipc::GetText(row.reduce_target))},
          {"rows_unread", reading.rows_unread}};
}

Json TotalsJson(const ipc::CountersRow& row) {
  return {
      {"operations_ended", row.operations_ended}, {"operations_failed", row.operations_failed},
      {"bytes_moved", row.bytes_moved},           {"records_refused", row.records_refused},
      {"late_reports", row.late_reports},         {"slow_ranks", row.slow_reports},
      {"quota_refusals", row.quota_refusals},     {"queue_rows_left_out", row.queue_rows_left_out},
      {"jobs_unrecorded", row.jobs_unrecorded},   {"blocks_verified", row.blocks_verified}};
}

Json LanesJson(const ipc::BoardReading& reading) {
  Json lanes = Json::array();
  for (const auto& [index, row] : reading.lanes) {
    Json jobs = Json::array();
    for (const ipc::ShareRow& share : reading.shares) {
      if (share.lane != index) continue;
      jobs.push_back({{"job", JobLabel(share.job_id, reading)},
                      {"bytes", share.bytes_moved},
                      {"in_flight_bytes", share.in_flight_bytes},
                      {"queued_stages", share.queued_stages}});
    }
    lanes.push_back({{"name", JsonText(ipc::GetText(row.name))},
                     {"transport", JsonText(ipc::GetText(row.transport))},
                     {"threads", row.threads},
                     {"credit_bytes", row.credit_bytes},
                     {"in_flight_bytes", row.in_flight_bytes},
                     {"in_flight_stages", row.in_flight_stages},
                     {"queued_stages", row.queued_stages},
                     {"stages_ended", row.stages_ended},
                     {"bytes", row.bytes_moved},
                     {"busy_s", row.busy_ns != ipc::kTimeUnknown ? Json(JsonSeconds(row.busy_ns))
                                                                 : Json(nullptr)},
                     {"rate_bytes_per_s", RateNow(row, reading.now_ns)},
                     {"startup_s", JsonSeconds(row.startup_ns)},
                     {"bandwidth_bytes_per_s", row.bytes_per_s},
                     {"messages_dropped", row.messages_dropped},
                     {"jobs", std::move(jobs)}});
  }
  return lanes;
}

Json GpusJson(const ipc::BoardReading& reading) {
  Json gpus = Json::array();
  for (const auto& [index, row] : reading.gpus) {
    Json jobs = Json::array();
    for (const ipc::JobRow& job : reading.jobs) {
      if (job.device_bytes[index] == 0) continue;
      jobs.push_back({{"job", JobLabel(job.id, reading)}, {"bytes", job.device_bytes[index]}});
    }
    gpus.push_back({{"gpu", index},
                    {"name", JsonText(ipc::GetText(row.name))},
                    {"memory_bytes", row.memory_size},
                    {"held_bytes", row.held_bytes},
                    {"segments", row.segments},
                    {"stream_words", row.stream_words != 0},
                    {"mps", row.mps != 0},
                    {"jobs", std::move(jobs)}});
  }
  return gpus;
}

Json EventsJson(const ipc::BoardReading& reading) {
  Json events = Json::array();
  for (const ipc::EventRow& row : reading.events) {
    events.push_back({{"number", row.number},
                      {"at_unix_s", JsonSeconds(row.at_unix_ns)},
                      {"code", CodeName(static_cast<Code>(row.code))},
                      {"job", row.job_id == 0 ? Json() : JobLabel(row.job_id, reading)},
                      {"text", JsonText(ipc::GetText(row.text))}});
  }
  return events;
}

}  // namespace

std::size_t TimelineBound::OfEach(std::size_t jobs) const {
  return std::clamp(all / std::max<std::size_t>(jobs, 1), job_min, job_max);
}

Json JsonText(std::string_view text) { return ValidUtf8(text); }

Json JobLabel(std::uint32_t job_id, const ipc::BoardReading& reading) {
  std::string label = JobName(job_id, reading);
  const ipc::JobRow* const job = reading.FindJob(job_id);
  const bool is_shared =
      job != nullptr && std::ranges::any_of(reading.jobs, [job](const ipc::JobRow& other) {
        return other.owner_uid != job->owner_uid &&
               ipc::GetText(other.name) == ipc::GetText(job->name);
      });
  if (is_shared) label += fmt::format(" (uid {})", job->owner_uid);
  return JsonText(label);
}

double JsonSeconds(TimeNs ns) { return static_cast<double>(ns) / 1e9; }

std::string WriteStatus(const ipc::BoardReading& reading, const ipc::BoardLayout& layout) {
  Json timelines = Json::array();
  for (const ipc::JobRow& job : reading.jobs) {
    if (Json timeline = TimelineJson(job, reading, layout); !timeline.is_null()) {
      timelines.push_back(std::move(timeline));
    }
  }
  const Json status = {{"service", ServiceJson(reading)}, {"totals", TotalsJson(reading.counters)},
                       {"jobs", JobsJson(reading)},       {"lanes", LanesJson(reading)},
                       {"served", ServedJson(reading)},   {"gpus", GpusJson(reading)},
                       {"queue", QueueJson(reading)},     {"timelines", std::move(timelines)},
                       {"events", EventsJson(reading)}};
  return status.dump();
}

}  // namespace headrace::service
