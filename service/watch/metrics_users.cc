// Metrics of users: what each has of the service, and may have.
#include <array>
#include <string>

#include "service/watch/metrics_parts.h"

namespace headrace::service {
namespace {

using enum MetricType;
using ipc::UserRow;

constexpr std::array kUserMetrics = {
    RowMetric<UserRow>{"headrace_user_connections", kGauge,
                       "Connections of the user to the service's socket.",
                       FieldOf<&UserRow::connections>},
    RowMetric<UserRow>{"headrace_user_sessions", kGauge, "Ranks of the user that are attached.",
                       FieldOf<&UserRow::sessions>},
    RowMetric<UserRow>{"headrace_user_sessions_limit", kGauge,
                       "Ranks that the user could come to while others have what they have now.",
                       FieldOf<&UserRow::sessions_max>},
    RowMetric<UserRow>{"headrace_user_memory_bytes", kGauge,
                       "Memory of the host and of GPUs that the user has handed over.",
                       FieldOf<&UserRow::memory_bytes>},
    RowMetric<UserRow>{"headrace_user_memory_limit_bytes", kGauge,
                       "Memory that the user may hand over; no sample where there is no limit.",
                       [](const UserRow& row) -> std::optional<MetricValue> {
                         if (row.memory_max == 0) return std::nullopt;
                         return MetricValue::Count(row.memory_max);
                       }},
};

}  // namespace

void WriteUserMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  for (const auto& metric : kUserMetrics) {
    text.Family(metric.name, metric.type, metric.help);
    for (const UserRow& user : reading.users) {
      if (const std::optional<MetricValue> value = metric.value(user)) {
        text.Sample({{"uid", std::to_string(user.uid)}}, *value);
      }
    }
  }
}

}  // namespace headrace::service
