#include "transport/probe/cost_keeper.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace headrace::transport {
void CostKeeper::Add(double bytes, double seconds, TimeNs now) {
  if (!std::isfinite(bytes) || !std::isfinite(seconds) || bytes <= 0 || seconds <= 0) return;
  const std::int64_t number = now / kSlotTime;
  Slot& slot = slots_[static_cast<std::size_t>(number % kSlots)];
  if (slot.number != number) slot = {number, 0};
  slot.bytes += bytes;

  const double predicted = std::max(line_.Seconds(bytes), 1e-9);
  const double believed = Believed(seconds, predicted);
  sums_.Forget(kKeep);
  // Relative errors: sizes span decades, and a microsecond matters at the small end.
  sums_.Add({bytes, believed}, 1 / (believed * believed));
  ++count_;
  if (learning_ > 0) --learning_;
  if (learning_ == 0) Fit();
}

double CostKeeper::Believed(double seconds, double predicted) {
  if (learning_ > 0) return seconds;
  const double shortest = predicted * (1 - kMissMax);
  const double longest = predicted * (1 + kMissMax);
  if (seconds >= shortest && seconds <= longest) {
    misses_ = 0;
    return seconds;
  }
  const int side = seconds > longest ? 1 : -1;
  misses_ = misses_ * side > 0 ? misses_ + side : side;
  if (std::abs(misses_) < kMissesMax) return std::clamp(seconds, shortest, longest);
  misses_ = 0;
  learning_ = kLearnCount;
  sums_ = {};
  return seconds;
}

void CostKeeper::Fit() {
  const double mean = sums_.bytes / sums_.weight;
  const double variance = sums_.bytes_bytes / sums_.weight - mean * mean;
  if (variance > kSpreadMin * kSpreadMin * mean * mean) {
    line_ = FitCostLine(sums_);
    return;
  }
  // All times are of one size: the startup stays as far as they leave room for it.
  const double mean_seconds = sums_.seconds / sums_.weight;
  line_.startup_s = std::min(line_.startup_s, mean_seconds / 2);
  line_.s_per_byte = std::max((mean_seconds - line_.startup_s) / mean, kSecondsPerByteMin);
}

double CostKeeper::RateNow(TimeNs now) const {
  const std::int64_t number = now / kSlotTime;
  double bytes = 0;
  for (const Slot& slot : slots_) {
    if (slot.number > number - kSlots && slot.number <= number) bytes += slot.bytes;
  }
  return bytes;  // of one second
}

}  // namespace headrace::transport
