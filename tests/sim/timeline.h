// What shall happen when, in virtual time. Things that are due at the same time happen in the order
// in which they were asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "ipc/base/clock.h"

namespace headrace::sim {

class Timeline {
 public:
  explicit Timeline(TimeNs now) : now_(now) {}

  TimeNs now() const { return now_; }
  void After(TimeNs delay_ns, std::function<void()> what) {
    due_.emplace(std::pair{now_ + delay_ns, ++asked_}, std::move(what));
  }
  TimeNs NextDue() const { return due_.empty() ? kNever : due_.begin()->first.first; }
  void AdvanceTo(TimeNs now) {
    while (NextDue() <= now) {
      const auto first = due_.extract(due_.begin());
      now_ = std::max(now_, first.key().first);
      first.mapped()();
    }
    now_ = std::max(now_, now);
  }

 private:
  TimeNs now_;
  std::map<std::pair<TimeNs, std::uint64_t>, std::function<void()>> due_;
  std::uint64_t asked_ = 0;
};

}  // namespace headrace::sim
