#include "service/dispatch/lanes/recent_users.h"

#include "ipc/base/check.h"

namespace headrace::service {

void RecentUsers::Moves(JobId job, std::uint32_t priority, TimeNs now) {
  HR_CHECK(priority < classes_.size(), priority);
  Class& mine = classes_[priority];
  if (mine.last != job) {
    mine.others_ns = mine.last_ns;
    mine.last = job;
  }
  mine.last_ns = now;
}

bool RecentUsers::Has(JobId job, std::uint32_t priority, TimeNs now) const {
  for (std::size_t i = priority; i < classes_.size(); ++i) {
    const TimeNs moved_ns = classes_[i].last == job ? classes_[i].others_ns : classes_[i].last_ns;
    if (now - moved_ns < kRecent) return true;
  }
  return false;
}

}  // namespace headrace::service
