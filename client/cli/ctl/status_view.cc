#include <fmt/format.h>

#include <algorithm>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"
#include "ipc/base/age.h"
#include "ipc/base/device_handle.h"

namespace headrace::ctl {
namespace {

// A counter as it is called in JSON and in the table.
struct Counter {
  std::string_view name;
  std::uint64_t ipc::CountersRow::*value;
  bool is_bytes = false;
};

constexpr Counter kCounters[] = {
    {"records_read", &ipc::CountersRow::records_read},
    {"records_refused", &ipc::CountersRow::records_refused},
    {"operations_ended", &ipc::CountersRow::operations_ended},
    {"operations_failed", &ipc::CountersRow::operations_failed},
    {"bytes_moved", &ipc::CountersRow::bytes_moved, true},
    {"doorbells", &ipc::CountersRow::doorbells},
    {"sleeps", &ipc::CountersRow::sleeps},
    {"wake_calls", &ipc::CountersRow::wake_calls},
    {"sessions_opened", &ipc::CountersRow::sessions_opened},
    {"sessions_closed", &ipc::CountersRow::sessions_closed},
    {"queue_rows_left_out", &ipc::CountersRow::queue_rows_left_out},
    {"late_reports", &ipc::CountersRow::late_reports},
    {"slow_ranks", &ipc::CountersRow::slow_reports},
    {"quota_refusals", &ipc::CountersRow::quota_refusals},
    {"jobs_unrecorded", &ipc::CountersRow::jobs_unrecorded},
    {"blocks_verified", &ipc::CountersRow::blocks_verified},
};

std::uint64_t SessionsOpen(const Snapshot& snapshot) {
  const ipc::CountersRow& counters = snapshot.counters;
  return counters.sessions_opened - std::min(counters.sessions_opened, counters.sessions_closed);
}

std::int64_t JobsIn(const Snapshot& snapshot, ipc::JobState state) {
  return std::count_if(snapshot.jobs.begin(), snapshot.jobs.end(), [state](const auto& job) {
    return job.state == static_cast<std::uint32_t>(state);
  });
}

// Per second between the two snapshots; a service that started anew in between counts from 0.
double Rate(const Counter& counter, const Snapshot& before, const Snapshot& after) {
  const bool same_service = before.service.started_ns == after.service.started_ns;
  const std::uint64_t from = same_service ? before.counters.*counter.value : 0;
  const std::uint64_t to = after.counters.*counter.value;
  const auto seconds = static_cast<double>(after.now_ns - before.now_ns) / kSecond;
  return seconds > 0 && to >= from ? static_cast<double>(to - from) / seconds : 0;
}

std::string Words(std::string_view name) {
  std::string words(name);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string CounterRate(const Counter& counter, const Snapshot& before, const Snapshot& after) {
  const double rate = Rate(counter, before, after);
  return counter.is_bytes ? FormatBytes(static_cast<std::uint64_t>(rate)) + "/s"
                          : fmt::format("{:.1f}/s", rate);
}

// "NVIDIA H200, holds 2.0 GiB of 139.0 GiB in 2 segments"
std::string Holds(const Gpu& gpu) {
  return fmt::format("{}, holds {} of {} in {} segment{}", ipc::GetText(gpu.row.name),
                     FormatBytes(gpu.row.held_bytes), FormatBytes(gpu.row.memory_size),
                     gpu.row.segments, gpu.row.segments == 1 ? "" : "s");
}

Json GpusJson(const Snapshot& snapshot) {
  Json gpus = Json::array();
  for (const Gpu& gpu : snapshot.gpus) {
    DeviceUuid uuid{};
    std::copy(std::begin(gpu.row.uuid), std::end(gpu.row.uuid), uuid.begin());
    gpus.push_back(
        {{"gpu", gpu.index},
         {"name", JsonText(ipc::GetText(gpu.row.name))},
         {"uuid", DeviceUuidText(uuid)},
         {"capability", fmt::format("{}.{}", gpu.row.capability_major, gpu.row.capability_minor)},
         {"memory_bytes", gpu.row.memory_size},
         {"held_bytes", gpu.row.held_bytes},
         {"segments", gpu.row.segments},
         {"stream_words", gpu.row.stream_words != 0},
         {"mps", gpu.row.mps != 0},
         {"multicast", gpu.row.multicast != 0}});
  }
  return gpus;
}

}  // namespace

std::string StatusTable(const Snapshot& snapshot, Liveness liveness, const Snapshot* before,
                        bool with_header) {
  const ipc::ServiceRow& service = snapshot.service;
  Table facts({{"SERVICE"}, {std::string(LivenessName(liveness))}});
  facts.Add({"state", std::string(ServiceStateName(service.state))});
  facts.Add({"version", fmt::format("{}, protocol {}", ipc::GetText(service.version),
                                    service.protocol_version)});
  facts.Add({"pid", fmt::format("{}, uid {}", service.pid, service.uid)});
  facts.Add({"uptime", FormatAge(snapshot.now_ns - service.started_ns)});
  facts.Add({"started", FormatUtc(service.started_unix_ns)});
  facts.Add({"socket", std::string(ipc::GetText(service.socket_path))});
  facts.Add({"reductions", std::string(ipc::GetText(service.reduce_target))});
  facts.Add({"sessions", fmt::format("{} open", SessionsOpen(snapshot))});
  facts.Add({"jobs", fmt::format("{} gathering, {} running, {} failed",
                                 JobsIn(snapshot, ipc::JobState::kGathering),
                                 JobsIn(snapshot, ipc::JobState::kRunning),
                                 JobsIn(snapshot, ipc::JobState::kFailed))});
  for (const Gpu& gpu : snapshot.gpus) facts.Add({fmt::format("gpu {}", gpu.index), Holds(gpu)});
  facts.Add({"queue", fmt::format("{} block stages", snapshot.queue.size())});
  Table counters = before == nullptr
                       ? Table({{"COUNTER"}, {"TOTAL", Align::kRight}})
                       : Table({{"COUNTER"}, {"TOTAL", Align::kRight}, {"RATE", Align::kRight}});
  for (const Counter& counter : kCounters) {
    const std::uint64_t value = snapshot.counters.*counter.value;
    std::vector<std::string> cells = {
        Words(counter.name), counter.is_bytes ? FormatBytes(value) : std::to_string(value)};
    if (before != nullptr) cells.push_back(CounterRate(counter, *before, snapshot));
    counters.Add(std::move(cells));
  }
  return facts.Render(with_header) + (with_header ? "\n" : "") + counters.Render(with_header);
}

Json StatusJson(const Snapshot& snapshot, Liveness liveness, const Snapshot* before) {
  const ipc::ServiceRow& service = snapshot.service;
  Json counters = Json::object();
  Json rates = Json::object();
  for (const Counter& counter : kCounters) {
    counters[std::string(counter.name)] = snapshot.counters.*counter.value;
    if (before != nullptr) rates[std::string(counter.name)] = Rate(counter, *before, snapshot);
  }
  Json json = {{"process", LivenessName(liveness)},
               {"state", ServiceStateName(service.state)},
               {"version", JsonText(ipc::GetText(service.version))},
               {"protocol_version", service.protocol_version},
               {"pid", service.pid},
               {"uid", service.uid},
               {"uptime_ns", snapshot.now_ns - service.started_ns},
               {"started_unix_ns", service.started_unix_ns},
               {"socket", JsonText(ipc::GetText(service.socket_path))},
               {"reduce_target", JsonText(ipc::GetText(service.reduce_target))},
               {"sessions_open", SessionsOpen(snapshot)},
               {"jobs_gathering", JobsIn(snapshot, ipc::JobState::kGathering)},
               {"jobs_running", JobsIn(snapshot, ipc::JobState::kRunning)},
               {"jobs_failed", JobsIn(snapshot, ipc::JobState::kFailed)},
               {"queue_stages", snapshot.queue.size()},
               {"gpus", GpusJson(snapshot)},
               {"rows_unread", snapshot.rows_unread},
               {"counters", std::move(counters)}};
  if (before != nullptr) {
    json["interval_ns"] = snapshot.now_ns - before->now_ns;
    json["rates_per_second"] = std::move(rates);
  }
  return json;
}

}  // namespace headrace::ctl
