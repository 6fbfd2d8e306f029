// Who of several parts takes a message: the one that has a Handle for it, with or without the time.
#pragma once

#include "ipc/base/clock.h"

namespace headrace::service {

template <typename Part, typename... Arguments>
concept Takes = requires(Part& part, Arguments&... arguments) {
  part.Handle(arguments...);
};
template <typename Part, typename... Arguments>
concept TakesTimed = requires(Part& part, TimeNs now, Arguments&... arguments) {
  part.Handle(arguments..., now);
};

// How many of one part take it: 1 or 0.
template <typename Part, typename... Arguments>
constexpr int kTakes = Takes<Part, Arguments...> || TakesTimed<Part, Arguments...> ? 1 : 0;

// Calls it, if there is one. What the arguments refer to may be gone afterwards.
template <typename Part, typename... Arguments>
void HandOver(Part& part, TimeNs now, Arguments&... arguments) {
  if constexpr (Takes<Part, Arguments...>) {
    part.Handle(arguments...);
  } else if constexpr (TakesTimed<Part, Arguments...>) {
    part.Handle(arguments..., now);
  }
}

}  // namespace headrace::service
