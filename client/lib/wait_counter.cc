#include "client/lib/wait_counter.h"

#include <utility>

#include "ipc/base/check.h"

namespace headrace::client {

void WaitCounter::MoveTo(ipc::ChannelLayout* channel) {
  const std::lock_guard lock(mutex_);
  channel_ = channel;
  Show();
}

void WaitCounter::Enable() {
  const std::lock_guard lock(mutex_);
  enabled_ = true;
  Show();
}

void WaitCounter::OnWaitBegun() {
  const std::lock_guard lock(mutex_);
  ++waiting_;
  Show();
}

void WaitCounter::OnWaitEnded(std::uint64_t waited_ns, bool over) {
  const std::lock_guard lock(mutex_);
  HR_CHECK(waiting_ > 0, waited_ns);
  --waiting_;
  uncounted_ns_ += waited_ns;
  if (channel_ == nullptr) return;
  if (over) {
    channel_->header.client_waited_ns.fetch_add(std::exchange(uncounted_ns_, 0),
                                                std::memory_order_relaxed);
  }
  Show();
}

void WaitCounter::Show() const {
  if (channel_ == nullptr) return;
  channel_->header.client_waits_elsewhere.store(enabled_ ? 1 + waiting_ : 0,
                                                std::memory_order_relaxed);
}

}  // namespace headrace::client
