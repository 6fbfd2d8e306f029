// Until when jobs may be forming: from their first rank here until they have all ranks and links.
// Pure.
//
// A look that comes late shows that this process stood still, and with it everything that the jobs
// wait for: that time is not held against them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ipc/base/clock.h"

namespace headrace::service {

inline constexpr TimeNs kFormingDefault = 60 * kSecond;

class Forming {
 public:
  void Begin(std::uint32_t job, TimeNs end_ns) { ends_.emplace(job, end_ns); }
  void End(std::uint32_t job) { ends_.erase(job); }

  // When PopOverdue is due; kNever: no job is forming.
  TimeNs NextDeadline() const;
  // The jobs whose time is over; they are forming no longer.
  std::vector<std::uint32_t> PopOverdue(TimeNs now);

 private:
  std::map<std::uint32_t, TimeNs> ends_;
};

// "job train did not begin within the time that it may gather (...): <waits>"
std::string DescribeOverdue(const std::string& job, const std::string& waits);

}  // namespace headrace::service
