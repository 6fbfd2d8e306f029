// Updates a lane's cost line by the transfers that finish on it, and measures its present rate.
// Allocates nothing; time comes in as an argument.
#pragma once

#include <array>
#include <cstdint>

#include "ipc/base/clock.h"
#include "transport/network.h"
#include "transport/probe/line_fit.h"

namespace headrace::transport {

class CostKeeper {
 public:
  // What a transfer still weighs after the next one: about the last 50 make the line.
  static constexpr double kKeep = 0.98;
  // A transfer that misses the line by more than this share of the predicted time counts as if it
  // missed by just that: one that waited for a slow peer does not bend the line.
  static constexpr double kMissMax = 0.25;
  // So many misses to the same side one after the other are no misses: the network has changed, and
  // the line is learned anew from as many transfers as it takes.
  static constexpr int kMissesMax = 8;
  static constexpr int kLearnCount = 5;
  // When sizes differ by less than this share, they tell nothing of the startup: only the rate
  // follows.
  static constexpr double kSpreadMin = 0.1;

  explicit CostKeeper(const CostLine& measured) : line_(measured) {}

  // A transfer for which a node sent `bytes` took `seconds` and ended now. What cannot be is
  // ignored: no bytes, no time, not a number.
  void Add(double bytes, double seconds, TimeNs now);

  const CostLine& line() const { return line_; }
  std::uint64_t count() const { return count_; }

  // Bytes a second over the last second.
  double RateNow(TimeNs now) const;

 private:
  static constexpr int kSlots = 20;
  static constexpr TimeNs kSlotTime = kSecond / kSlots;
  struct Slot {
    std::int64_t number = -1;  // of kSlotTime since the clock's zero
    double bytes = 0;
  };

  double Believed(double seconds, double predicted);
  void Fit();

  CostLine line_;
  CostSums sums_;
  std::uint64_t count_ = 0;
  int learning_ = kLearnCount;  // transfers to come before the line moves
  int misses_ = 0;              // in a row, above zero for too long, below for too short
  std::array<Slot, kSlots> slots_{};
};

}  // namespace headrace::transport
