#include "client/cli/ctl/units.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace headrace::ctl {

std::string FormatBytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.5 would be printed as 1024 of the smaller unit.
  while (amount >= 1023.5 && unit + 1 < kUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  return amount < 9.95 ? fmt::format("{:.1f} {}", amount, kUnits[unit])
                       : fmt::format("{:.0f} {}", amount, kUnits[unit]);
}

std::string FormatAge(TimeNs age_ns) {
  constexpr TimeNs kMinute = 60 * kSecond;
  constexpr TimeNs kHour = 60 * kMinute;
  constexpr TimeNs kDay = 24 * kHour;
  const TimeNs age = std::max<TimeNs>(age_ns, 0);
  const double ms = static_cast<double>(age) / kMillisecond;
  if (age < 10 * kMillisecond) return fmt::format("{:.1f} ms", ms);
  if (age < kSecond) return fmt::format("{} ms", age / kMillisecond);
  if (age < kMinute) return fmt::format("{:.1f} s", static_cast<double>(age / 100'000'000) / 10);
  if (age < kHour) return fmt::format("{}m {:02}s", age / kMinute, age % kMinute / kSecond);
  if (age < kDay) return fmt::format("{}h {:02}m", age / kHour, age % kHour / kMinute);
  return fmt::format("{}d {:02}h", age / kDay, age % kDay / kHour);
}

std::string FormatMilliseconds(TimeNs time_ns) {
  return fmt::format("{:.2f} ms", static_cast<double>(time_ns) / kMillisecond);
}

std::string FormatDifference(TimeNs time_ns) {
  return fmt::format("{:+.2f} ms", static_cast<double>(time_ns) / kMillisecond);
}

std::string FormatRate(std::uint64_t bytes, TimeNs duration_ns) {
  if (duration_ns <= 0) return "-";
  // Bytes per nanosecond are GB per second.
  return fmt::format("{:.2f} GB/s", static_cast<double>(bytes) / static_cast<double>(duration_ns));
}

std::string FormatShare(TimeNs part, TimeNs whole) {
  if (whole <= 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return percent < 9.95 ? fmt::format("{:.1f} %", percent) : fmt::format("{:.0f} %", percent);
}

std::string FormatUtc(std::int64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / kSecond);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03}Z", fmt::gmtime(seconds),
                     unix_ns % kSecond / kMillisecond);
}

}  // namespace headrace::ctl
