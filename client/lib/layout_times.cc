#include "client/lib/layout_times.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "ipc/records.h"

namespace headrace::client {
namespace {

void Add(std::uint64_t& total, TimeNs more) {
  const auto added = static_cast<std::uint64_t>(std::max<TimeNs>(more, 0));
  total = std::min(total + std::min(added, ipc::kGradientTimeMax), ipc::kGradientTimeMax);
}

}  // namespace

void LayoutTimes::Pause(TimeNs now) {
  if (!running_) return;
  HR_CHECK(*running_ < parts_.size(), *running_, parts_.size());
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
