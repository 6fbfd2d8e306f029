#include "service/dispatch/standstill.h"

#include <utility>

namespace headrace::service {

TimeNs Standstill::BeginTurn(TimeNs now) {
  // Woken before its time, or at once after a turn that had something to do.
  const bool waited_for = now >= due_ns_ && due_ns_ > turned_ns_;
  if (due_ns_ == kNever || now - due_ns_ < kLeast) {
    if (waited_for) in_time_ = true;
    return 0;
  }
  const bool all_late = !std::exchange(in_time_, false);
  return all_late ? now - due_ns_ : now - turned_ns_;
}

}  // namespace headrace::service
