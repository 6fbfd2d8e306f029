// Metrics of plans: how long iterations take under them, and how much of the communication shows.
#include <algorithm>
#include <array>

#include "service/watch/metrics_parts.h"

namespace headrace::service {
namespace {

using enum MetricType;
using ipc::PlanRow;
using Value = std::optional<MetricValue>;

// A median that is not known yet is 0 on the board.
template <auto kField>
Value Known(const PlanRow& row) {
  if (row.*kField <= 0) return std::nullopt;
  return MetricValue::Seconds(row.*kField);
}

// The measured time of both passes. What else the training loop does is left out, since no plan
// predicts it.
TimeNs PassesOf(const PlanRow& row) {
  return row.measured_ns - std::min(row.elsewhere_ns, row.measured_ns);
}

// Waiting that no iteration did hides all of it; more waiting than moving hides nothing.
Value Overlap(const PlanRow& row) {
  if (row.moving_ns <= 0 || row.measured_ns <= 0) return std::nullopt;
  const double shown = static_cast<double>(row.waited_ns) / static_cast<double>(row.moving_ns);
  return MetricValue::Ratio(std::clamp(1 - shown, 0.0, 1.0));
}

Value PlanError(const PlanRow& row) {
  if (row.predicted_ns <= 0 || row.measured_ns <= 0) return std::nullopt;
  return MetricValue::Ratio(
      static_cast<double>(PassesOf(row)) / static_cast<double>(row.predicted_ns) - 1);
}

// Metrics of the plan in force: they begin anew with the next one, whose policy may differ.
constexpr std::array kOfPolicy = {
    RowMetric<PlanRow>{"headrace_plan_version", kGauge, "Number of the plan in force.",
                       FieldOf<&PlanRow::version>},
    RowMetric<PlanRow>{"headrace_plan_blocks", kGauge, "Blocks of one iteration.",
                       FieldOf<&PlanRow::blocks>},
    RowMetric<PlanRow>{"headrace_plan_bytes", kGauge, "Bytes of one rank's gradients.",
                       FieldOf<&PlanRow::bytes>},
    RowMetric<PlanRow>{"headrace_plan_iteration_seconds", kGauge,
                       "Median of the last iterations, from one backward pass to the next.",
                       Known<&PlanRow::measured_ns>},
    RowMetric<PlanRow>{"headrace_plan_backward_seconds", kGauge,
                       "Median backward pass of the slowest rank of this node.",
                       Known<&PlanRow::backward_ns>},
    RowMetric<PlanRow>{"headrace_plan_forward_seconds", kGauge,
                       "Median forward pass of the slowest rank of this node, without waits.",
                       Known<&PlanRow::forward_ns>},
    RowMetric<PlanRow>{"headrace_plan_waited_seconds", kGauge,
                       "Median time of an iteration that its forward pass stood still.",
                       FieldOf<&PlanRow::waited_ns>},
    RowMetric<PlanRow>{"headrace_plan_moving_seconds", kGauge,
                       "Median time of an iteration with a block on a lane.",
                       Known<&PlanRow::moving_ns>},
    RowMetric<PlanRow>{"headrace_plan_elsewhere_seconds", kGauge,
                       "Median time of an iteration outside of its passes and their waits.",
                       FieldOf<&PlanRow::elsewhere_ns>},
    RowMetric<PlanRow>{"headrace_plan_predicted_seconds", kGauge,
                       "Time of an iteration as the plan predicts it.",
                       Known<&PlanRow::predicted_ns>},
    RowMetric<PlanRow>{"headrace_plan_lower_bound_seconds", kGauge,
                       "Time of an iteration that no plan on these lanes goes below.",
                       Known<&PlanRow::lower_bound_ns>},
    RowMetric<PlanRow>{"headrace_plan_overlap_ratio", kGauge,
                       "Share of the communication of the last iterations that was hidden.",
                       Overlap},
    RowMetric<PlanRow>{"headrace_plan_error_ratio", kGauge,
                       "Measured iteration, less elsewhere, over the predicted one, less 1.",
                       PlanError},
};

// Sums over all plans of the job.
constexpr std::array kSums = {
    RowMetric<PlanRow>{"headrace_job_iteration_waited_seconds_total", kCounter,
                       "Time that forward passes stood still, summed over iterations.",
                       FieldOf<&PlanRow::iterations_waited_ns>},
    RowMetric<PlanRow>{"headrace_job_iteration_moving_seconds_total", kCounter,
                       "Time with a block on a lane, summed over iterations.",
                       FieldOf<&PlanRow::iterations_moving_ns>},
};

}  // namespace

void WritePlanMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  const std::vector<ipc::JobRow> jobs = NamedJobs(reading);
  struct Planned {
    std::string_view job;
    std::string uid;
    const PlanRow* plan;
  };
  std::vector<Planned> plans;
  for (const PlanRow& plan : reading.plans) {
    const ipc::JobRow* const job = FindNamed(plan.job_id, jobs);
    if (job == nullptr || plan.version == 0) continue;
    plans.push_back({ipc::GetText(job->name), std::to_string(job->owner_uid), &plan});
  }
  for (const auto& metric : kOfPolicy) {
    text.Family(metric.name, metric.type, metric.help);
    for (const auto& [job, uid, plan] : plans) {
      if (const Value value = metric.value(*plan)) {
        text.Sample({{"job", job}, {"uid", uid}, {"policy", ipc::GetText(plan->policy)}}, *value);
      }
    }
  }
  text.Family("headrace_job_iteration_seconds", kSummary,
              "Iterations that have ended under plans of the job, and the time they took.");
  for (const auto& [job, uid, plan] : plans) {
    text.Sample({{"job", job}, {"uid", uid}}, MetricValue::Seconds(plan->iterations_ns), "_sum");
    text.Sample({{"job", job}, {"uid", uid}}, MetricValue::Count(plan->iterations_count), "_count");
  }
  for (const auto& metric : kSums) {
    text.Family(metric.name, metric.type, metric.help);
    for (const auto& [job, uid, plan] : plans) {
      text.Sample({{"job", job}, {"uid", uid}}, *metric.value(*plan));
    }
  }
}

}  // namespace headrace::service
