// The parts of the text that metrics.h promises, each with families of its own. For this folder.
#pragma once

#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ipc/board_reading.h"
#include "service/watch/metrics_text.h"
#include "service/watch/process_facts.h"

namespace headrace::service {

// A family with at most one sample a row; nothing where the row does not know.
template <typename Row>
struct RowMetric {
  std::string_view name;
  MetricType type;
  std::string_view help;
  std::optional<MetricValue> (*value)(const Row& row);
};

namespace metrics_internal {
template <typename Row, typename Field>
Row RowOf(Field Row::*);
}  // namespace metrics_internal

// The value of one field: signed ones are nanoseconds, as everywhere on the board.
template <auto kField>
std::optional<MetricValue> FieldOf(const decltype(metrics_internal::RowOf(kField))& row) {
  if constexpr (std::is_signed_v<std::remove_cvref_t<decltype(row.*kField)>>) {
    return MetricValue::Seconds(row.*kField);
  } else {
    return MetricValue::Count(row.*kField);
  }
}

// The jobs that series are named after, by name and owner: of two rows with the same (one job ends
// while the next begins) the younger one.
std::vector<ipc::JobRow> NamedJobs(const ipc::BoardReading& reading);
// The job with that id among them; null when it is not.
const ipc::JobRow* FindNamed(std::uint32_t job_id, const std::vector<ipc::JobRow>& jobs);

void WritePeerMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WriteServedMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WriteServiceMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WriteJobMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WritePlanMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WriteRankMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WriteLaneMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WriteUserMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WriteGpuMetrics(const ipc::BoardReading& reading, MetricsText& text);
void WriteProcessMetrics(const ipc::BoardReading& reading, const ProcessFacts& process,
                         MetricsText& text);

}  // namespace headrace::service
