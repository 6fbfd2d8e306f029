#include "client/lib/call_gate.h"

#include "ipc/base/check.h"

namespace headrace::client {

bool CallGate::Enter() {
  if ((state_.fetch_add(1) & kClosed) == 0) return true;
  Leave();
  return false;
}

void CallGate::EnterWhenOpen() {
  while (!Enter()) {
    const std::uint32_t state = state_.load();
    if ((state & kClosed) != 0) state_.wait(state);
  }
}

void CallGate::Leave() {
  const std::uint32_t before = state_.fetch_sub(1);
  HR_CHECK((before & ~kClosed) > 0, before);
  if (before == (kClosed | 1)) state_.notify_all();
}

void CallGate::Close() {
  std::uint32_t state = state_.fetch_or(kClosed) | kClosed;
  while (state != kClosed) {
    state_.wait(state);
    state = state_.load();
  }
}

void CallGate::Open() {
  state_.fetch_and(~kClosed);
  state_.notify_all();
}

}  // namespace headrace::client
