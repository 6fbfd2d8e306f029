#include "client/lib/layout_times.h"

#include <algorithm>
#include <limits>

namespace headrace::client {
namespace {

// Records have 32 bits for a time: 4.29 s, which no plan can hide anything behind anyway.
void Add(std::uint32_t& total, TimeNs more) {
  constexpr TimeNs kMost = std::numeric_limits<std::uint32_t>::max();
  total = static_cast<std::uint32_t>(total + std::clamp<TimeNs>(more, 0, kMost - total));
}

}  // namespace

void LayoutTimes::Pause(TimeNs now) {
  if (!running_) return;
  Add(parts_[*running_].forward_ns, now - since_ns_);
  running_.reset();
}

void LayoutTimes::Reach(std::size_t index, TimeNs now, TimeNs waited_ns) {
  LoseTime(index, waited_ns);
  if (pass_ == Pass::kOver) return;
  pass_ = Pass::kRunning;
  running_ = index;
  since_ns_ = now;
}

void LayoutTimes::LoseTime(std::size_t index, TimeNs waited_ns) {
  Add(parts_[index].waited_ns, waited_ns);
}

void LayoutTimes::EndForward(TimeNs now) {
  Pause(now);
  // Before the first wait nothing has begun that could end.
  if (pass_ == Pass::kRunning) pass_ = Pass::kOver;
}

void LayoutTimes::BeginBackward(TimeNs now) {
  Pause(now);
  pass_ = Pass::kExpected;
  backward_ns_ = now;
}

}  // namespace headrace::client
