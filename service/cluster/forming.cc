#include "service/cluster/forming.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::service {
namespace {

// By so much a timer may come late on a machine that is busy.
constexpr TimeNs kLateMax = 2 * kSecond;

}  // namespace

TimeNs Forming::NextDeadline() const {
  TimeNs next = kNever;
  for (const auto& [job, end_ns] : ends_) next = std::min(next, end_ns);
  return next;
}

std::vector<std::uint32_t> Forming::PopOverdue(TimeNs now) {
  const TimeNs late_ns = now - NextDeadline();
  if (late_ns > kLateMax) {
    for (auto& [job, end_ns] : ends_) end_ns += late_ns + kLateMax;
  }
  std::vector<std::uint32_t> overdue;
  for (const auto& [job, end_ns] : ends_) {
    if (now >= end_ns) overdue.push_back(job);
  }
  for (const std::uint32_t job : overdue) ends_.erase(job);
  HR_CHECK(NextDeadline() > now, now, overdue.size());
  return overdue;
}

std::string DescribeOverdue(const std::string& job, const std::string& waits) {
  return fmt::format(
      "job {} did not begin within the time that it may gather (forming_ms of the "
      "service, or its rank's timeout where that is longer): {}",
      job, waits);
}

}  // namespace headrace::service
