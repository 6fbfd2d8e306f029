// A user's request for a running job. It goes from the CLI through rpc, and, for a job of several
// nodes, through its leader to all of them; each node's dispatch carries it out.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/base/error.h"
#include "ipc/base/steering.h"

namespace headrace::service {

struct Steering {
  using Kind = SteeringKind;

  Kind kind = Kind::kPause;
  std::uint64_t value = 0;
  std::uint32_t uid = 0;  // who asks
  std::string node{};     // where it was asked; empty: on this node
  bool forced = false;    // whatever it does; known where it was asked only
};

// Argument of a drain between services: the job ends because the service of a node ends, and its
// ranks go on with the next one. 0: they end with it.
inline constexpr std::uint64_t kDrainToMoveOver = 1;

inline bool MovesOver(const Steering& steering) {
  return steering.kind == SteeringKind::kDrain && steering.value == kDrainToMoveOver;
}

// What operations end with that a drain or a cancel ends.
inline Code CodeOfEnd(const Steering& steering) {
  return MovesOver(steering) ? Code::kUnavailable : Code::kCancelled;
}

}  // namespace headrace::service
