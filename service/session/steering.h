// What a person asks of a running job. Carried from the CLI through control, and, for a job of
// several nodes, through its leader to all of them; carried out by each node's dispatch.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::service {

// Everything but cancel takes effect where the job's next iteration begins (of a job without
// layout: with its next operation).
struct Steering {
  enum class Kind : std::uint8_t {
    kPause = 1,     // nothing of the job begins any more; deadlines stand still
    kResume = 2,    // ends a pause
    kDrain = 3,     // the job ends, with a named cause, once what is posted has ended
    kCancel = 4,    // the job ends now
    kWeight = 5,    // value: share of a lane among jobs of its priority, 1 to kWeightMax
    kPriority = 6,  // value: class, 0 to kPriorityMax; larger goes first
    kLimit = 7,     // value: bytes a second on each lane; 0: none
  };

  Kind kind = Kind::kPause;
  std::uint64_t value = 0;
  std::uint32_t uid = 0;  // who asks
  std::string node{};     // where it was asked; empty: on this node
};

inline constexpr std::uint64_t kWeightMax = 1000;
inline constexpr std::uint64_t kPriorityMax = 15;
inline constexpr std::uint64_t kDefaultPriority = 0;
// Less would never let a block through before operations time out.
inline constexpr std::uint64_t kLimitMin = 1000;

}  // namespace headrace::service
