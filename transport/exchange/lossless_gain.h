// Decides whether lossless coding is worth its time: compares its processor time with the time that
// the saved bytes would take on the wire. The two overlap if a processor is idle; if none is, sums
// may take longer encoded than unencoded.
//
// Each node decides for its own messages. Results are the same bits either way. Plain data, of one
// lane.
#pragma once

#include <cstdint>

#include "ipc/base/clock.h"

namespace headrace::transport {

class LosslessGain {
 public:
  // So many messages are coded before the first judgement, and one in so many where that does not
  // pay: times change.
  static constexpr std::uint32_t kLearned = 4;
  static constexpr std::uint32_t kTriedEvery = 64;

  // Whether to code the next message, where a byte takes so long on the wire.
  bool Tries(double s_per_byte);
  // A message was coded in that time, and saved so many bytes: none where it goes as it is.
  void OnEncoded(TimeNs time_ns, std::uint64_t saved_bytes);
  // Messages of others were decoded.
  void OnDecoded(TimeNs time_ns) { coding_s_ += static_cast<double>(time_ns) / kSecond; }

 private:
  // Older messages fade.
  static constexpr double kKeep = 0.95;

  double coding_s_ = 0;
  double saved_bytes_ = 0;
  std::uint32_t learned_ = 0;
  std::uint32_t skipped_ = 0;
};

}  // namespace headrace::transport
