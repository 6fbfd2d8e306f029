// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/base/clock.h"
#include "ipc/base/result.h"

namespace headrace::ctl {

// "512 B", "4.0 KiB", "64 MiB": three digits at most before the unit, binary.
std::string FormatBytes(std::uint64_t bytes);

// "182.05 ms", to be compared with others.
std::string FormatMilliseconds(TimeNs time_ns);
// "+1.20 ms", "-0.03 ms".
std::string FormatDifference(TimeNs time_ns);

// "12.8 GB/s", "85.0 MB/s", "512 B/s": three digits before a decimal unit, of bytes that took
// `duration_ns`; "-" when nothing was measured.
std::string FormatRate(std::uint64_t bytes, TimeNs duration_ns);

// What a person means by "2Gbit", "500Mbit/s" or "100MB/s", in bytes a second; 0 for "none". A unit
// is written as people write it, k, M, G and T are powers of 1000, KiB, MiB and GiB of 1024; a mere
// number means nothing. The error says what is taken.
Result<std::uint64_t> ParseRateLimit(std::string_view text);
// "2 Gbit/s", "800 Mbit/s"; "none" for 0.
std::string FormatRateLimit(std::uint64_t bytes_per_s);

// "37 %"; "-" when `whole` is not positive.
std::string FormatShare(TimeNs part, TimeNs whole);

// "2026-11-21 03:40:12.345Z": in UTC, which the letter says.
std::string FormatUtc(std::int64_t unix_ns);

}  // namespace headrace::ctl
