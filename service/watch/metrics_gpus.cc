// Metrics of GPUs, and of what each job has there.
#include <array>
#include <string>

#include "service/watch/metrics_parts.h"

namespace headrace::service {
namespace {

using enum MetricType;
using ipc::GpuRow;

constexpr std::array kGpuMetrics = {
    RowMetric<GpuRow>{"headrace_gpu_memory_bytes", kGauge, "Memory that the GPU has.",
                      FieldOf<&GpuRow::memory_size>},
    RowMetric<GpuRow>{
        "headrace_gpu_held_bytes", kGauge,
        "Memory of clients on the GPU that is mapped by the service, and the service's "
        "own scratch there.",
        FieldOf<&GpuRow::held_bytes>},
    RowMetric<GpuRow>{"headrace_gpu_segments", kGauge,
                      "Segments of clients on the GPU that are mapped by the service.",
                      FieldOf<&GpuRow::segments>},
};

}  // namespace

void WriteGpuMetrics(const ipc::BoardReading& reading, MetricsText& text) {
  text.Family("headrace_gpu_info", kGauge,
              "Always 1; the labels say what the GPU is, and who writes its words.");
  for (const auto& [index, gpu] : reading.gpus) {
    text.Sample({{"gpu", std::to_string(index)},
                 {"name", ipc::GetText(gpu.name)},
                 {"words", gpu.stream_words != 0 ? "stream" : "host_call"}},
                MetricValue::Count(1));
  }
  for (const auto& metric : kGpuMetrics) {
    text.Family(metric.name, metric.type, metric.help);
    for (const auto& [index, gpu] : reading.gpus) {
      text.Sample({{"gpu", std::to_string(index)}}, *metric.value(gpu));
    }
  }
  text.Family("headrace_job_gpu_bytes", kGauge,
              "Memory of the job's ranks on the GPU that is mapped by the service.");
  for (const ipc::JobRow& job : NamedJobs(reading)) {
    for (const auto& [index, gpu] : reading.gpus) {
      text.Sample({{"job", ipc::GetText(job.name)},
                   {"uid", std::to_string(job.owner_uid)},
                   {"gpu", std::to_string(index)}},
                  MetricValue::Count(job.device_bytes[index]));
    }
  }
}

}  // namespace headrace::service
