#include "client/cli/ctl/units.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace headrace::ctl {

namespace {

struct RateUnit {
  std::string_view name;
  double bytes_per_s;
};

constexpr std::array kRateUnits = {
    RateUnit{"bit", 1.0 / 8},
    RateUnit{"kbit", 1e3 / 8},
    RateUnit{"Mbit", 1e6 / 8},
    RateUnit{"Gbit", 1e9 / 8},
    RateUnit{"Tbit", 1e12 / 8},
    RateUnit{"B", 1},
    RateUnit{"kB", 1e3},
    RateUnit{"MB", 1e6},
    RateUnit{"GB", 1e9},
    RateUnit{"TB", 1e12},
    RateUnit{"KiB", 1024},
    RateUnit{"MiB", 1024.0 * 1024},
    RateUnit{"GiB", 1024.0 * 1024 * 1024},
};

Error NoRate(std::string_view text) {
  return Error(Code::kInvalidArgument,
               fmt::format("\"{}\" is not a rate: write a number and bit, kbit, Mbit, Gbit or Tbit "
                           "(2Gbit), or B, kB, MB, GB, KiB, MiB or GiB and /s (100MB/s), or none",
                           text));
}

}  // namespace

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

std::string FormatMilliseconds(TimeNs time_ns) {
  return fmt::format("{:.2f} ms", static_cast<double>(time_ns) / kMillisecond);
}

std::string FormatDifference(TimeNs time_ns) {
  return fmt::format("{:+.2f} ms", static_cast<double>(time_ns) / kMillisecond);
}

std::string FormatRate(std::uint64_t bytes, TimeNs duration_ns) {
  if (duration_ns <= 0) return "-";
  constexpr std::array kUnits = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  double amount = static_cast<double>(bytes) * kSecond / static_cast<double>(duration_ns);
  std::size_t unit = 0;
  // 999.5 would be printed as 1000 of the smaller unit.
  while (amount >= 999.5 && unit + 1 < kUnits.size()) {
    amount /= 1000;
    ++unit;
  }
  const int decimals = amount >= 99.95 || unit == 0 ? 0 : amount >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", amount, decimals, kUnits[unit]);
}

Result<std::uint64_t> ParseRateLimit(std::string_view text) {
  if (text == "none") return std::uint64_t{0};
  double number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number, std::chars_format::fixed);
  std::string_view unit(end, static_cast<std::size_t>(last - end));
  if (error != std::errc() || !(number > 0) || !std::isfinite(number)) return NoRate(text);
  const bool per_second = unit.ends_with("/s");
  if (per_second) unit.remove_suffix(2);
  const auto* found = std::find_if(kRateUnits.begin(), kRateUnits.end(),
                                   [unit](const RateUnit& known) { return known.name == unit; });
  // Bits without a time are a rate by custom; bytes are an amount.
  if (found == kRateUnits.end() || (!per_second && !unit.ends_with("bit"))) return NoRate(text);
  const double bytes = std::round(number * found->bytes_per_s);
  // Less than a byte would be taken for no limit; more than fits cannot be said to the service.
  if (bytes < 1 || bytes > 9e18) return NoRate(text);
  return static_cast<std::uint64_t>(bytes);
}

std::string FormatRateLimit(std::uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return "none";
  constexpr std::array kUnits = {"bit", "kbit", "Mbit", "Gbit", "Tbit"};
  double amount = static_cast<double>(bytes_per_s) * 8;
  std::size_t unit = 0;
  while (amount >= 1000 && unit + 1 < kUnits.size()) {
    amount /= 1000;
    ++unit;
  }
  return fmt::format("{:.4g} {}/s", amount, kUnits[unit]);
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
