// What is known of how long a job waits: plain data inside Job, changed by late.h only.
#pragma once

#include <array>
#include <cstdint>

#include "ipc/base/clock.h"

namespace headrace::service {

// What one of a job's two orders (operations as posted, blocks of the plan) waits with: the first
// that has not ended, at one place of its way.
struct LateWait {
  enum class Place : std::uint8_t { kNone, kGathering, kOnItsWay };
  Place place = Place::kNone;
  std::uint64_t number = 0;  // sequence; of the plan's head: iteration << 32 | index
  TimeNs since_ns = 0;
  bool reported = false;
  bool told = false;  // and people have heard of it

  bool Is(const LateWait& other) const { return place == other.place && number == other.number; }
};

struct LateNotes {
  std::array<LateWait, 2> waits;
  // Waits count from here at the earliest: the job was paused until then.
  TimeNs not_before_ns = 0;
  // Reports that may be told before time has earned another.
  std::uint32_t reports_left = 8;
  TimeNs earned_ns = 0;
};

}  // namespace headrace::service
