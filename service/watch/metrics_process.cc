// The process as the kernel sees it, under the names that all exporters share.
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "service/watch/metrics_parts.h"

namespace headrace::service {
namespace {

using enum MetricType;

TimeNs Nanoseconds(const timeval& time) {
  return time.tv_sec * kSecond + time.tv_usec * kMicrosecond;
}

// "Threads:  5" of /proc/self/status.
std::uint64_t Threads() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    std::uint64_t count = 0;
    if (key == "Threads:" && status >> count) return count;
    std::getline(status, key);
  }
  return 0;
}

}  // namespace

ProcessFacts ReadProcess() {
  ProcessFacts facts;
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    facts.cpu_ns = Nanoseconds(usage.ru_utime) + Nanoseconds(usage.ru_stime);
  }
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream pages("/proc/self/statm");
  std::uint64_t all = 0;
  std::uint64_t resident = 0;
  if (pages >> all >> resident) {
    facts.virtual_bytes = all * page;
    facts.resident_bytes = resident * page;
  }
  std::error_code error;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  if (!error) {
    // Less the one that lists them.
    const auto count = std::distance(begin(descriptors), end(descriptors));
    facts.descriptors = static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(count, 1) - 1);
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.descriptors_max = limit.rlim_cur;
  facts.threads = Threads();
  return facts;
}

void WriteProcessMetrics(const ipc::BoardReading& reading, const ProcessFacts& process,
                         MetricsText& text) {
  const auto write = [&text](std::string_view name, MetricType type, std::string_view help,
                             const MetricValue& value) {
    text.Family(name, type, help);
    text.Sample({}, value);
  };
  write("process_cpu_seconds_total", kCounter, "User and system time of all threads.",
        MetricValue::Seconds(process.cpu_ns));
  write("process_resident_memory_bytes", kGauge,
        "Memory of the process that is in RAM, the memory of its clients included.",
        MetricValue::Count(process.resident_bytes));
  write("process_virtual_memory_bytes", kGauge, "Address space of the process.",
        MetricValue::Count(process.virtual_bytes));
  write("process_open_fds", kGauge, "Descriptors that are open.",
        MetricValue::Count(process.descriptors));
  write("process_max_fds", kGauge, "Descriptors that may be open.",
        MetricValue::Count(process.descriptors_max));
  write("process_threads", kGauge, "Threads of the process.", MetricValue::Count(process.threads));
  write("process_start_time_seconds", kGauge, "When the service started, in Unix time.",
        MetricValue::Seconds(reading.service.started_unix_ns));
}

}  // namespace headrace::service
