#include "client/cli/replay/pace.h"

#include <sys/prctl.h>

#include <cerrno>
#include <cmath>
#include <ctime>

namespace headrace::replay {
namespace {

// The finalizer of splitmix64: every bit of the input reaches every bit of the output.
std::uint64_t Mix(std::uint64_t bits) {
  bits += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

}  // namespace

void SleepUntil(TimeNs deadline) {
  const timespec until{static_cast<time_t>(deadline / kSecond),
                       static_cast<long>(deadline % kSecond)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void WakeOnTime() {
  // Cannot fail for a positive slack; without it sleeps end later, which the due time makes up for.
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

TimeNs Jittered(TimeNs time_ns, double jitter, std::uint64_t seed, std::uint32_t rank,
                std::uint64_t iteration, std::uint32_t pass, std::uint64_t tensor) {
  if (jitter == 0) return time_ns;
  const std::uint64_t bits =
      Mix(Mix(Mix(Mix(seed) ^ rank) ^ iteration) ^ (std::uint64_t{pass} << 32 | tensor));
  // 53 bits are what a double holds: 0 <= unit < 1.
  const double unit = static_cast<double>(bits >> 11) * 0x1p-53;
  return std::llround(static_cast<double>(time_ns) * (1 + jitter * (2 * unit - 1)));
}

}  // namespace headrace::replay
