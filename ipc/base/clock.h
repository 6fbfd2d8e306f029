// Time as an argument: actors get `now`, only their runners read a clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace headrace {

// Nanoseconds of CLOCK_MONOTONIC: the same line in every process of one machine.
using TimeNs = std::int64_t;

inline constexpr TimeNs kNever = INT64_MAX;
inline constexpr TimeNs kMicrosecond = 1'000;
inline constexpr TimeNs kMillisecond = 1'000'000;
inline constexpr TimeNs kSecond = 1'000'000'000;

inline TimeNs MonotonicNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Nanoseconds since 1970, for people and for other machines; it may be set, and step.
inline std::int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace headrace
