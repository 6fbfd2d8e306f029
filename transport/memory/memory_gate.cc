#include "transport/memory/memory_gate.h"

#include "ipc/base/check.h"

namespace headrace::transport {

bool MemoryGate::TryBeginCollective() {
  std::uint32_t state = state_.load();
  while (state < kCaller) {
    HR_CHECK(state + 1 < kCaller, state);
    if (state_.compare_exchange_weak(state, state + 1)) return true;
  }
  return false;
}

void MemoryGate::EndCollective() {
  const std::uint32_t before = state_.fetch_sub(1);
  HR_CHECK(before > 0 && before < kCaller, before);
  if (before == 1) free_moments_.fetch_add(1);
}

bool MemoryGate::TryBeginCalls() {
  std::uint32_t state = state_.load();
  while (state == 0 || state >= kCaller) {
    HR_CHECK(state % kCaller == 0 && state < UINT32_MAX - kCaller, state);
    if (state_.compare_exchange_weak(state, state + kCaller)) return true;
  }
  return false;
}

bool MemoryGate::Caller::TryBegin(TimeNs now) {
  HR_CHECK(!alone_);
  if (gate_.TryBeginCalls()) {
    alone_ = true;
    since_ns_ = kNever;
    gave_up_at_.reset();
    return true;
  }
  if (since_ns_ == kNever) since_ns_ = now;
  const std::uint32_t free_moments = gate_.free_moments_.load();
  if (gave_up_at_ != free_moments && now - since_ns_ < kPatience) return false;
  since_ns_ = kNever;
  gave_up_at_ = free_moments;
  return true;
}

void MemoryGate::Caller::End() {
  since_ns_ = kNever;
  if (!alone_) return;
  alone_ = false;
  const std::uint32_t before = gate_.state_.fetch_sub(kCaller);
  HR_CHECK(before >= kCaller, before);
  HR_CHECK(before % kCaller == 0, before);  // no collective began meanwhile
}

}  // namespace headrace::transport
