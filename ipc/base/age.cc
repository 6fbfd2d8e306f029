#include "ipc/base/age.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace {

std::string FormatAge(TimeNs age_ns) {
  constexpr TimeNs kMinute = 60 * kSecond;
  constexpr TimeNs kHour = 60 * kMinute;
  constexpr TimeNs kDay = 24 * kHour;
  const TimeNs age = std::max<TimeNs>(age_ns, 0);
  const double ms = static_cast<double>(age) / kMillisecond;
  if (age < 10 * kMillisecond) return fmt::format("{:.1f} ms", ms);
  if (age < kSecond) return fmt::format("{} ms", age / kMillisecond);
  const TimeNs tenths = age / (kSecond / 10);
  if (age < kMinute) return fmt::format("{:.1f} s", static_cast<double>(tenths) / 10);
  if (age < kHour) return fmt::format("{}m {:02}s", age / kMinute, age % kMinute / kSecond);
  if (age < kDay) return fmt::format("{}h {:02}m", age / kHour, age % kHour / kMinute);
  return fmt::format("{}d {:02}h", age / kDay, age % kDay / kHour);
}

}  // namespace headrace
