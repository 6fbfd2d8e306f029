// The candidates of a plan by the policy `auto`, and the margin of the winner: written into the
// plan, so that every node can show it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/base/policies.h"

namespace headrace::plan {

// How a candidate's draft came about. The numbers stand in plans on the wire.
enum class Variant : std::uint8_t {
  kPlain = 0,        // for the median of the recorded times
  kEarly = 1,        // for their first quarter
  kLate = 2,         // for their third quarter
  kBusy = 3,         // for computing beside a lane that is always busy
  kLargeBlocks = 4,  // for a startup four times as long
  kSmallBlocks = 5,  // for a quarter of it
  kNoBarrier = 6,    // the policy's blocks, but each tensor waits for its own only
  kKept = 7,         // the plan that was in force
  kLatest = 8,       // for the time that one of ten exceeds
  kIdle = 9,         // for computing beside an idle lane
  kFloor = 10,       // blocks joined until their bytes take as long as their startup
  kCeiling = 11,     // blocks cut into pieces of a sixteenth of all bytes
};
inline constexpr std::array<std::string_view, 12> kVariantNames = {
    "",           "early", "late",   "busy", "large blocks", "small blocks",
    "no barrier", "kept",  "latest", "idle", "floor",        "ceiling"};

struct PlanCandidate {
  Policy policy = Policy::kExact;
  Variant variant = Variant::kPlain;

  friend bool operator==(const PlanCandidate&, const PlanCandidate&) = default;
};

// "exact, late"
std::string Describe(const PlanCandidate& candidate);

// Belongs to a plan whose predicted time is the mean over recorded iterations.
struct Choice {
  std::uint32_t iterations = 0;  // that were simulated; 0: none, the prediction is for the medians
  double p90_s = 0;              // nine of ten of them take at most that
  PlanCandidate chosen;
  // The best one of another policy, and its mean; 0: there was none to choose from.
  PlanCandidate next;
  double next_s = 0;

  friend bool operator==(const Choice&, const Choice&) = default;
};

}  // namespace headrace::plan
