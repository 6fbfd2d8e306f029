#include "transport/rails/rail_health.h"

#include <algorithm>

#include "ipc/base/check.h"

namespace headrace::transport {

void RailHealth::OnAcknowledged(TimeNs now, TimeNs round_trip_ns, bool waits) {
  // The longest fades by an eighth with each that is shorter.
  round_trip_ns_ = std::clamp<TimeNs>(std::max(round_trip_ns, round_trip_ns_ - round_trip_ns_ / 8),
                                      0, kRoundTripMax);
  waiting_since_ns_ = waits ? now : kNever;
  sent_again_count_ = 0;
}

void RailHealth::OnSentAgain(TimeNs now) {
  HR_CHECK(active_ && waiting_since_ns_ != kNever, now);
  HR_CHECK(sent_again_count_ < kSentAgainMax, sent_again_count_);
  waiting_since_ns_ = now;
  ++sent_again_count_;
}

void RailHealth::OnFailed(std::size_t index, TimeNs now) {
  HR_CHECK(index < rails_count_, index, rails_count_);
  Rail& rail = rails_[index];
  const bool again = rail.backoff_ns != 0 && (rail.down || now - rail.back_ns < kStable);
  rail.backoff_ns = again ? std::min(2 * rail.backoff_ns, kBackoffMax) : kBackoffMin;
  HR_CHECK(rail.backoff_ns >= kBackoffMin && rail.backoff_ns <= kBackoffMax, rail.backoff_ns);
  rail.down = true;
  rail.pinged_ns = kNever;
  rail.retry_ns = now + rail.backoff_ns;
  if (active_ != index) return;
  if (waiting_since_ns_ != kNever) waiting_since_ns_ = now;
  sent_again_count_ = 0;
  Choose();
}

bool RailHealth::OnAnswered(std::size_t index, TimeNs now) {
  HR_CHECK(index < rails_count_, index, rails_count_);
  Rail& rail = rails_[index];
  rail.pinged_ns = kNever;
  rail.answered_ns = now;
  if (!rail.down) return false;
  rail.down = false;
  rail.back_ns = now;
  const std::optional<std::size_t> before = active_;
  Choose();
  // What is under way on the rail before goes on there, and has its time anew.
  if (active_ != before && waiting_since_ns_ != kNever) waiting_since_ns_ = now;
  return true;
}

void RailHealth::Choose() {
  active_.reset();
  for (std::size_t rail = 0; rail < rails_count_ && !active_; ++rail) {
    if (!rails_[rail].down) active_ = rail;
  }
}

TimeNs RailHealth::SuspectedNs() const {
  if (waiting_since_ns_ == kNever || !active_) return kNever;
  return waiting_since_ns_ + (kSilence << sent_again_count_) + round_trip_ns_;
}

TimeNs RailHealth::PingDue(std::size_t index) const {
  const Rail& rail = rails_[index];
  TimeNs due = kNever;
  if (rail.down) {
    due = rail.retry_ns;
  } else if (rails_count_ > 1) {
    // One answer for each silence.
    due = HasAnswered(rail) ? kNever : SuspectedNs();
  }
  if (due == kNever || rail.pinged_ns == kNever) return due;
  return std::max(due, rail.pinged_ns + kPingAgain);
}

bool RailHealth::MustPing(std::size_t rail, TimeNs now) const { return PingDue(rail) <= now; }

TimeNs RailHealth::VerdictDue() const {
  TimeNs due = kNever;
  if (SuspectedNs() == kNever || IsKept()) return due;
  for (std::size_t index = 0; index < rails_count_; ++index) {
    const Rail& rail = rails_[index];
    if (index == active_ || rail.down || !HasAnswered(rail)) continue;
    due = std::min(due, rail.answered_ns + kGrace);
  }
  return due;
}

std::optional<TimeNs> RailHealth::IsSilent(TimeNs now) const {
  if (VerdictDue() > now) return std::nullopt;
  HR_CHECK(active_ && waiting_since_ns_ != kNever && now >= waiting_since_ns_, now,
           waiting_since_ns_);
  return now - waiting_since_ns_;
}

TimeNs RailHealth::NextDeadline() const {
  TimeNs next = VerdictDue();
  for (std::size_t rail = 0; rail < rails_count_; ++rail) next = std::min(next, PingDue(rail));
  return next;
}

}  // namespace headrace::transport
