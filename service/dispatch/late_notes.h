// What is known of how long a job waits: plain data inside Job, changed by late.h only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ipc/base/clock.h"

namespace headrace::service {

// Where operations as they were posted, and blocks of the plan, may wait. In each place the first
// one that does stands for those behind it.
enum class LatePlace : std::uint8_t {
  kOperation,       // not posted by all ranks
  kOperationMoves,  // in the queue or on a lane
  kHead,            // the plan's next block: likewise not posted by all
  kBlockMoves,
};
inline constexpr std::size_t kLatePlaces = 4;

// One wait: `number` and `since_ns` tell it from the next one in its place.
struct LateWait {
  std::uint64_t number = 0;  // sequence; of the head: iteration << 32 | gradient; 0: nothing waits
  TimeNs since_ns = 0;

  friend bool operator==(const LateWait&, const LateWait&) = default;
};

struct LateNotes {
  struct Reported {
    LateWait wait;
    std::string subject;  // what went on, for people; empty: they have not heard of it
  };
  std::array<Reported, kLatePlaces> reported;
  std::uint32_t reported_count = 0;
  // Waits in each place count from here at the earliest: what was reported ended then, or the job
  // was paused until then.
  std::array<TimeNs, kLatePlaces> not_before_ns{};
  bool was_paused = false;
  TimeNs asked_ns = 0;  // when lanes were asked last
  // Reports that people may be told before time has earned another.
  std::uint32_t tellings_left = 8;
  TimeNs earned_ns = 0;
};

}  // namespace headrace::service
