// Deadlines of forming jobs. A job is forming from its first rank on this node until all ranks have
// attached and all links are open. Pure.
//
// If PopOverdue is called late, this process was stopped, and with it what the jobs wait for. That
// time is added to their deadlines.
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

  // When PopOverdue is due; kNever if no job is forming.
  TimeNs NextDeadline() const;
  // Removes and returns the jobs whose deadline has passed.
  std::vector<std::uint32_t> PopOverdue(TimeNs now);

 private:
  std::map<std::uint32_t, TimeNs> ends_;
};

// "job train did not begin within the time that it may gather (...): <waits>"
std::string DescribeOverdue(const std::string& job, const std::string& waits);

}  // namespace headrace::service
