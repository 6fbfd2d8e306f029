#include "service/watch/metrics.h"

#include <algorithm>

#include "service/watch/metrics_parts.h"

namespace headrace::service {

std::vector<ipc::JobRow> NamedJobs(const ipc::BoardReading& reading) {
  std::vector<ipc::JobRow> jobs;
  for (auto job = reading.jobs.rbegin(); job != reading.jobs.rend(); ++job) {
    const auto taken = std::find_if(jobs.begin(), jobs.end(), [job](const ipc::JobRow& other) {
      return other.owner_uid == job->owner_uid &&
             ipc::GetText(other.name) == ipc::GetText(job->name);
    });
    if (taken == jobs.end()) jobs.push_back(*job);
  }
  std::reverse(jobs.begin(), jobs.end());
  return jobs;
}

const ipc::JobRow* FindNamed(std::uint32_t job_id, const std::vector<ipc::JobRow>& jobs) {
  const auto found = std::find_if(jobs.begin(), jobs.end(),
                                  [job_id](const ipc::JobRow& job) { return job.id == job_id; });
  return found == jobs.end() ? nullptr : &*found;
}

std::string WriteMetrics(const ipc::BoardReading& reading, const ProcessFacts& process) {
  MetricsText text;
  WriteServiceMetrics(reading, text);
  WritePeerMetrics(reading, text);
  WriteServedMetrics(reading, text);
  WriteUserMetrics(reading, text);
  WriteJobMetrics(reading, text);
  WritePlanMetrics(reading, text);
  WriteRankMetrics(reading, text);
  WriteLaneMetrics(reading, text);
  WriteGpuMetrics(reading, text);
  WriteProcessMetrics(reading, process, text);
  return text.Release();
}

}  // namespace headrace::service
