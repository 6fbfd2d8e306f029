#include "transport/exchange/lossless_gain.h"

namespace headrace::transport {

bool LosslessGain::Tries(double s_per_byte) {
  if (learned_ < kLearned || coding_s_ <= saved_bytes_ * s_per_byte) return true;
  if (++skipped_ < kTriedEvery) return false;
  skipped_ = 0;
  return true;
}

void LosslessGain::OnEncoded(TimeNs time_ns, std::uint64_t saved_bytes) {
  if (learned_ < kLearned) ++learned_;
  coding_s_ = kKeep * coding_s_ + static_cast<double>(time_ns) / kSecond;
  saved_bytes_ = kKeep * saved_bytes_ + static_cast<double>(saved_bytes);
}

}  // namespace headrace::transport
