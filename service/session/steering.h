// A person's wish for a running job. Carried from the CLI through control, and, for a job of
// several nodes, through its leader to all of them; carried out by each node's dispatch.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/base/steering.h"

namespace headrace::service {

struct Steering {
  using Kind = SteeringKind;

  Kind kind = Kind::kPause;
  std::uint64_t value = 0;
  std::uint32_t uid = 0;  // who asks
  std::string node{};     // where it was asked; empty: on this node
};

}  // namespace headrace::service
