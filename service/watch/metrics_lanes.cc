// Metrics of lanes, and of what each job has of each lane.
#include <array>
#include <optional>

#include "service/watch/metrics_parts.h"

namespace headrace::service {
namespace {

using enum MetricType;
using ipc::LaneRow;
using ipc::ShareRow;

std::optional<MetricValue> BusyTime(const LaneRow& row) {
  if (row.busy_ns == ipc::kTimeUnknown) return std::nullopt;
  return MetricValue::Seconds(row.busy_ns);
}

constexpr std::array kLaneMetrics = {
    RowMetric<LaneRow>{"headrace_lane_threads", kGauge, "Threads that move the lane's bytes.",
                       FieldOf<&LaneRow::threads>},
    RowMetric<LaneRow>{"headrace_lane_credit_bytes", kGauge,
                       "Bytes that each job may have in flight on the lane.",
                       FieldOf<&LaneRow::credit_bytes>},
    RowMetric<LaneRow>{"headrace_lane_in_flight_bytes", kGauge, "Bytes on the lane, of all jobs.",
                       FieldOf<&LaneRow::in_flight_bytes>},
    RowMetric<LaneRow>{"headrace_lane_in_flight_stages", kGauge,
                       "Block stages on the lane, of all jobs.",
                       FieldOf<&LaneRow::in_flight_stages>},
    RowMetric<LaneRow>{"headrace_lane_queued_stages", kGauge,
                       "Block stages that wait for the lane, of all jobs.",
                       FieldOf<&LaneRow::queued_stages>},
    RowMetric<LaneRow>{"headrace_lane_stages_total", kCounter, "Block stages that have ended.",
                       FieldOf<&LaneRow::stages_ended>},
    RowMetric<LaneRow>{"headrace_lane_bytes_total", kCounter,
                       "Bytes of block stages that have ended.", FieldOf<&LaneRow::bytes_moved>},
    RowMetric<LaneRow>{"headrace_lane_busy_seconds_total", kCounter,
                       "Time with a block stage on the lane; between nodes, time in which bytes "
                       "moved, and no series where the lane cannot tell (NCCL).",
                       BusyTime},
    RowMetric<LaneRow>{"headrace_lane_startup_seconds", kGauge,
                       "Measured cost of a stage of no bytes; 0: not known yet.",
                       FieldOf<&LaneRow::startup_ns>},
    RowMetric<LaneRow>{"headrace_lane_bandwidth_bytes_per_second", kGauge,
                       "Measured rate of a long stage; 0: not known yet.",
                       FieldOf<&LaneRow::bytes_per_s>},
    RowMetric<LaneRow>{"headrace_lane_messages_dropped_total", kCounter,
                       "Messages of strangers, old epochs and other plans, malformed or repeated, "
                       "as after a lost rail.",
                       FieldOf<&LaneRow::messages_dropped>},
};

constexpr std::array kShareMetrics = {
    RowMetric<ShareRow>{"headrace_job_lane_in_flight_bytes", kGauge,
                        "Bytes of the job on the lane: the credit it has taken.",
                        FieldOf<&ShareRow::in_flight_bytes>},
    RowMetric<ShareRow>{"headrace_job_lane_in_flight_stages", kGauge,
                        "Block stages of the job on the lane.",
                        FieldOf<&ShareRow::in_flight_stages>},
    RowMetric<ShareRow>{"headrace_job_lane_queued_stages", kGauge,
                        "Block stages of the job that wait for the lane.",
                        FieldOf<&ShareRow::queued_stages>},
    RowMetric<ShareRow>{"headrace_job_lane_stages_total", kCounter,
                        "Block stages of the job that have ended on the lane.",
                        FieldOf<&ShareRow::stages_ended>},
    RowMetric<ShareRow>{"headrace_job_lane_bytes_total", kCounter,
                        "Bytes of the job's block stages that have ended on the lane.",
                        FieldOf<&ShareRow::bytes_moved>},
    RowMetric<ShareRow>{"headrace_job_lane_queued_seconds_total", kCounter,
                        "Time that the job's stages waited for the lane, summed over stages.",
                        FieldOf<&ShareRow::waiting_ns>},
    RowMetric<ShareRow>{"headrace_job_lane_moving_seconds_total", kCounter,
                        "Time that the job's stages were on the lane, summed over stages.",
                        FieldOf<&ShareRow::moving_ns>},
};

}  // namespace

void WriteLaneMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  text.Family("headrace_lane_info", kGauge, "Always 1; the labels say what the lane runs over.");
  for (const auto& [index, lane] : reading.lanes) {
    text.Sample({{"lane", ipc::GetText(lane.name)}, {"transport", ipc::GetText(lane.transport)}},
                MetricValue::Count(1));
  }
  for (const auto& metric : kLaneMetrics) {
    text.Family(metric.name, metric.type, metric.help);
    for (const auto& [index, lane] : reading.lanes) {
      const std::optional<MetricValue> value = metric.value(lane);
      if (value) text.Sample({{"lane", ipc::GetText(lane.name)}}, *value);
    }
  }
  const std::vector<ipc::JobRow> jobs = NamedJobs(reading);
  for (const auto& metric : kShareMetrics) {
    text.Family(metric.name, metric.type, metric.help);
    for (const ShareRow& share : reading.shares) {
      const ipc::JobRow* const job = FindNamed(share.job_id, jobs);
      const LaneRow* const lane = reading.FindLane(share.lane);
      if (job == nullptr || lane == nullptr) continue;
      text.Sample({{"job", ipc::GetText(job->name)},
                   {"uid", std::to_string(job->owner_uid)},
                   {"lane", ipc::GetText(lane->name)}},
                  *metric.value(share));
    }
  }
}

}  // namespace headrace::service
