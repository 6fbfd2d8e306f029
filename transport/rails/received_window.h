// Which of a link's numbered messages have arrived: each counts once, whichever rail it came over.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>

namespace headrace::transport {

class ReceivedWindow {
 public:
  // A sender has no more under way than this, beginning with the first that was not acknowledged.
  static constexpr std::size_t kSize = 2048;

  enum class Outcome : std::uint8_t { kNew, kTwice, kBeyond };

  // Numbers begin with 1. One that is beyond the window is not taken.
  Outcome Add(std::uint64_t sequence) {
    if (sequence < end_) return Outcome::kTwice;
    if (sequence - end_ >= kSize) return Outcome::kBeyond;
    if (come_[sequence % kSize]) return Outcome::kTwice;
    come_[sequence % kSize] = true;
    for (; come_[end_ % kSize]; ++end_) come_[end_ % kSize] = false;
    return Outcome::kNew;
  }

  // All below have come.
  std::uint64_t end() const { return end_; }

 private:
  std::uint64_t end_ = 1;
  std::bitset<kSize> come_;  // of [end, end + kSize)
};

}  // namespace headrace::transport
