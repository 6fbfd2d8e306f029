// The profile that is replayed, within the limits of a service and a machine, with times for this
// run.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"
#include "ipc/profile.h"

namespace headrace::replay {

using plan::Profile;
using plan::Tensor;

inline constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 38;  // of one rank's gradients
inline constexpr double kIterationSecondsMax = 3600;

inline TimeNs Nanoseconds(double seconds) {
  return static_cast<TimeNs>(seconds * static_cast<double>(kSecond) + 0.5);
}

// Multiplies times by `scale`; sizes stay. The error names the field that a replay cannot have.
Result<Profile> Replayable(Profile profile, double scale);

// Reads a file; the error names it.
Result<Profile> ReadReplayable(const std::string& path, double scale);

}  // namespace headrace::replay
