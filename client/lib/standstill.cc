#include "client/lib/standstill.h"

#include <algorithm>

namespace headrace::client {
namespace {

constexpr TimeNs kLeastMargin = kSecond;
constexpr TimeNs kMarginMax = 10 * kSecond;
constexpr TimeNs kLeastInterval = 50 * kMillisecond;
constexpr TimeNs kIntervalMax = 5 * kSecond;

}  // namespace

TimeNs AnswerMargin(TimeNs due_ns) { return std::clamp(due_ns / 4, kLeastMargin, kMarginMax); }

StandstillDetector::StandstillDetector(TimeNs timeout_ns)
    : timeout_ns_(timeout_ns),
      interval_ns_(std::clamp(timeout_ns / 8, kLeastInterval, kIntervalMax)) {}

StandstillDetector::Step StandstillDetector::Check(TimeNs now, std::uint64_t oldest) {
  const TimeNs passed_ns = std::min(now - looked_ns_, 2 * interval_ns_);
  looked_ns_ = now;
  if (oldest == 0 || oldest != oldest_) {
    oldest_ = oldest;
    open_ns_ = 0;
    return Step::kNone;
  }
  open_ns_ += passed_ns;
  if (open_ns_ < timeout_ns_) return Step::kNone;
  if (open_ns_ >= timeout_ns_ + AnswerMargin(timeout_ns_)) return Step::kGiveUp;
  if (asking_) return Step::kNone;
  asking_ = true;
  return Step::kAsk;
}

void StandstillDetector::OnAnswer(bool lives) {
  asking_ = false;
  if (lives) open_ns_ = 0;
}

}  // namespace headrace::client
