// Metrics of the service as a whole: what it is, and what it counted since it started.
#include <algorithm>
#include <array>

#include "ipc/board_text.h"
#include "service/watch/metrics_parts.h"

namespace headrace::service {
namespace {

using enum MetricType;
using ipc::CountersRow;

constexpr std::array kCounters = {
    RowMetric<CountersRow>{"headrace_service_operations_total", kCounter,
                           "Operations that have ended, well or not.",
                           FieldOf<&CountersRow::operations_ended>},
    RowMetric<CountersRow>{"headrace_service_bytes_total", kCounter,
                           "Bytes of one rank's memory, summed over operations that have ended.",
                           FieldOf<&CountersRow::bytes_moved>},
    RowMetric<CountersRow>{"headrace_service_records_total", kCounter,
                           "Records read from the rings of sessions.",
                           FieldOf<&CountersRow::records_read>},
    RowMetric<CountersRow>{"headrace_service_records_refused_total", kCounter,
                           "Records that were malformed or not allowed.",
                           FieldOf<&CountersRow::records_refused>},
    RowMetric<CountersRow>{"headrace_service_sessions_opened_total", kCounter,
                           "Sessions that were opened.", FieldOf<&CountersRow::sessions_opened>},
    RowMetric<CountersRow>{"headrace_service_sessions_closed_total", kCounter,
                           "Sessions that were closed, by whatever cause.",
                           FieldOf<&CountersRow::sessions_closed>},
    RowMetric<CountersRow>{"headrace_service_late_reports_total", kCounter,
                           "Operations that waited longer than late_ms and were reported.",
                           FieldOf<&CountersRow::late_reports>},
    RowMetric<CountersRow>{"headrace_service_slow_ranks_total", kCounter,
                           "Ranks that were slow for longer than their job allows.",
                           FieldOf<&CountersRow::slow_reports>},
    RowMetric<CountersRow>{"headrace_service_quota_refusals_total", kCounter,
                           "Sessions, memory and posts that were beyond the quota of their uid.",
                           FieldOf<&CountersRow::quota_refusals>},
    RowMetric<CountersRow>{"headrace_service_queue_rows_left_out_total", kCounter,
                           "Block stages that found no free row on the board.",
                           FieldOf<&CountersRow::queue_rows_left_out>},
    RowMetric<CountersRow>{"headrace_service_jobs_unrecorded_total", kCounter,
                           "Jobs that found no place in the flight recorder.",
                           FieldOf<&CountersRow::jobs_unrecorded>},
    RowMetric<CountersRow>{"headrace_service_blocks_verified_total", kCounter,
                           "Blocks after which it was compared what the ranks have got.",
                           FieldOf<&CountersRow::blocks_verified>},
    RowMetric<CountersRow>{"headrace_service_doorbells_total", kCounter,
                           "Times that a client woke the data path.",
                           FieldOf<&CountersRow::doorbells>},
    RowMetric<CountersRow>{"headrace_service_sleeps_total", kCounter,
                           "Times that the data path went to sleep.",
                           FieldOf<&CountersRow::sleeps>},
    RowMetric<CountersRow>{"headrace_service_wake_calls_total", kCounter,
                           "System calls that woke clients.", FieldOf<&CountersRow::wake_calls>},
};

void WriteWhatItIs(const ipc::BoardReading& reading, MetricsText& text) {
  const ipc::ServiceRow& row = reading.service;
  text.Family("headrace_build_info", kGauge,
              "Always 1; the labels say which version this is, and how it sums.");
  text.Sample({{"version", ipc::GetText(row.version)},
               {"protocol", std::to_string(row.protocol_version)},
               {"board", std::to_string(ipc::kBoardVersion)},
               {"reduce_target", ipc::GetText(row.reduce_target)}},
              MetricValue::Count(1));
  text.Family("headrace_service_state", kGauge,
              "1 for the state that the service is in, 0 for the others.");
  using State = ipc::ServiceState;
  for (const State state : {State::kStarting, State::kRunning, State::kDraining, State::kStopped}) {
    const auto number = static_cast<std::uint32_t>(state);
    text.Sample({{"state", ipc::ServiceStateName(number)}},
                MetricValue::Count(row.state == number ? 1 : 0));
  }
}

void WriteWhatThereIs(const ipc::BoardReading& reading, MetricsText& text) {
  text.Family("headrace_service_jobs", kGauge, "Jobs on this node, by their state.");
  using JobState = ipc::JobState;
  for (const JobState state : {JobState::kGathering, JobState::kRunning, JobState::kFailed}) {
    const auto number = static_cast<std::uint32_t>(state);
    const auto count =
        std::count_if(reading.jobs.begin(), reading.jobs.end(),
                      [number](const ipc::JobRow& job) { return job.state == number; });
    text.Sample({{"state", ipc::JobStateName(number)}},
                MetricValue::Count(static_cast<std::uint64_t>(count)));
  }
  text.Family("headrace_service_sessions", kGauge, "Ranks that are attached to this service.");
  text.Sample({}, MetricValue::Count(reading.ranks.size()));
  text.Family("headrace_service_events_total", kCounter, "Events that were put on the board.");
  text.Sample({}, MetricValue::Count(reading.events.empty() ? 0 : reading.events.back().number));
  text.Family("headrace_service_board_rows_unread", kGauge,
              "Rows of the board that this scrape left out because they were being written.");
  text.Sample({}, MetricValue::Count(reading.rows_unread));
}

void WriteCertificate(const ipc::CertificateRow& row, MetricsText& text) {
  text.Family("headrace_certificate_expiry_timestamp_seconds", kGauge,
              "When the certificate of this node, or of those that signed it, ends, in Unix time.");
  if (row.in_use != 0) {
    text.Sample({{"certificate", "node"}}, MetricValue::Seconds(row.until_unix_s * kSecond));
    text.Sample({{"certificate", "authority"}},
                MetricValue::Seconds(row.authority_until_unix_s * kSecond));
  }
  text.Family("headrace_certificate_refused", kGauge,
              "1 while the certificate's files have changed and are not used; the log says why.");
  if (row.in_use != 0) text.Sample({}, MetricValue::Count(row.refused[0] == 0 ? 0 : 1));
}

}  // namespace

void WriteServiceMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  WriteWhatItIs(reading, text);
  WriteWhatThereIs(reading, text);
  WriteCertificate(reading.certificate, text);
  for (const auto& metric : kCounters) {
    text.Family(metric.name, metric.type, metric.help);
    text.Sample({}, *metric.value(reading.counters));
  }
  text.Family("headrace_log_dropped_total", kCounter,
              "Lines of the service's log that were dropped because nobody read them in time.");
  text.Sample({}, MetricValue::Count(reading.log.lines_dropped));
  text.Family("headrace_service_failures_total", kCounter,
              "Operations that ended with an error, by its code.");
  for (int number = 1; number < kCodesCount; ++number) {
    text.Sample(
        {{"code", CodeName(static_cast<Code>(number))}},
        MetricValue::Count(reading.counters.failed_by_code[static_cast<std::size_t>(number)]));
  }
}

}  // namespace headrace::service
