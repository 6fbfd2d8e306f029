// Tracks which of the rails to one peer work, and which one its messages take.
//
// A rail that fails with an error is down at once. A rail that is only silent is compared with
// others: when no message on it has been acknowledged for some time, the peer is pinged over all
// rails. If it answers over another and still not here, the rail is down. If it answers here, the
// rail works, and what was not acknowledged is lost, or came to a link that the peer has closed: it
// is sent again over the same rail, after a longer time each time. A rail over which only pings
// come through counts as silent in the end. A peer that stands still answers nowhere, and nothing
// is done. A rail that is down is tried again, after a longer time each time that it fails soon
// after its return. The first working rail is used, beginning with the lane's own.
//
// Pure: time comes in as an argument. The lane's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ipc/base/clock.h"
#include "transport/rails/rail_address.h"

namespace headrace::transport {

class RailHealth {
 public:
  // Without an acknowledgement for so long, and the time that one takes of late, the other rails
  // are asked. Acknowledgements that nobody waits for are late by 20 ms at most.
  static constexpr TimeNs kSilence = 80 * kMillisecond;
  // From an answer over another rail on, the silent one has so long to say something after all.
  static constexpr TimeNs kGrace = 15 * kMillisecond;
  static constexpr TimeNs kRoundTripMax = kSecond;
  // So often all is sent again over a rail that answers, after a silence that doubles each time.
  static constexpr std::uint32_t kSentAgainMax = 5;
  // From a failure to the first attempt, doubled with each failure of a rail that had not been
  // there for kStable.
  static constexpr TimeNs kBackoffMin = 250 * kMillisecond;
  static constexpr TimeNs kBackoffMax = 16 * kSecond;
  static constexpr TimeNs kStable = 30 * kSecond;
  // A ping without an answer is repeated.
  static constexpr TimeNs kPingAgain = kSecond;

  explicit RailHealth(std::size_t rails_count) : rails_count_(rails_count) {}
  RailHealth() = default;

  std::size_t rails_count() const { return rails_count_; }
  // The rail that messages take; none when all are down.
  std::optional<std::size_t> active() const { return active_; }
  bool IsDown(std::size_t rail) const { return rails_[rail].down; }

  // ---- what was seen ----
  // From now on something is under way that the peer has to acknowledge.
  void OnWaiting(TimeNs now) { waiting_since_ns_ = now; }
  // It has acknowledged something that took so long, and `waits` for more.
  void OnAcknowledged(TimeNs now, TimeNs round_trip_ns, bool waits);
  // The rail cannot be used, as it said itself, or as IsSilent says.
  void OnFailed(std::size_t rail, TimeNs now);
  // A ping was sent over the rail, and the peer has answered one.
  void OnPinged(std::size_t rail, TimeNs now) { rails_[rail].pinged_ns = now; }
  // Returns whether the rail was down and is back.
  bool OnAnswered(std::size_t rail, TimeNs now);
  // What the active rail has lost was sent again over it.
  void OnSentAgain(TimeNs now);

  // ---- what follows ----
  // For how long the active rail has been silent when it is to be given up.
  std::optional<TimeNs> IsSilent(TimeNs now) const;
  // Whether the active rail has been silent for so long that the others are asked.
  bool IsSuspected(TimeNs now) const { return SuspectedNs() <= now; }
  // Whether the active rail works, though nothing was acknowledged for so long.
  bool HasLost(TimeNs now) const { return IsSuspected(now) && IsKept(); }
  // Whether the peer is to be asked over that rail now.
  bool MustPing(std::size_t rail, TimeNs now) const;
  // When one of these may change by itself.
  TimeNs NextDeadline() const;

 private:
  struct Rail {
    bool down = false;
    TimeNs pinged_ns = kNever;    // without an answer yet
    TimeNs answered_ns = kNever;  // the last time
    TimeNs retry_ns = 0;          // while it is down
    TimeNs backoff_ns = 0;
    TimeNs back_ns = 0;  // when it was last down no more
  };

  // When the silence is too long; kNever while nothing is waited for.
  TimeNs SuspectedNs() const;
  // Since the silence is too long.
  bool HasAnswered(const Rail& rail) const {
    return rail.answered_ns != kNever && rail.answered_ns >= SuspectedNs();
  }
  // The active rail has answered, and what it has lost is still sent again over it.
  bool IsKept() const { return sent_again_count_ < kSentAgainMax && HasAnswered(rails_[*active_]); }
  TimeNs PingDue(std::size_t rail) const;
  TimeNs VerdictDue() const;
  void Choose();

  std::size_t rails_count_ = 1;
  std::array<Rail, kWireRailsMax> rails_{};
  std::optional<std::size_t> active_ = 0;
  TimeNs waiting_since_ns_ = kNever;
  std::uint32_t sent_again_count_ = 0;  // since the last acknowledgement
  TimeNs round_trip_ns_ = 0;            // the longest of late
};

}  // namespace headrace::transport
