#include "service/cluster/heartbeat.h"

#include <algorithm>

namespace headrace::service {

bool Heartbeat::Check(TimeNs now) {
  const TimeNs late_ns = now - due_ns_;
  if (late_ns >= detection_ns_) woke_ns_ = now;
  if (late_ns > interval_ns()) heard_ns_ = std::min(now, heard_ns_ + late_ns);
  const TimeNs lost_ns = heard_ns_ + detection_ns_;
  due_ns_ = std::min(now + interval_ns(), lost_ns);
  // Seen without delay, since half of the time is left then.
  if (const TimeNs quiet_ns = heard_ns_ + detection_ns_ / 2; quiet_ns > now) {
    due_ns_ = std::min(due_ns_, quiet_ns);
  }
  return now < lost_ns;
}

}  // namespace headrace::service
