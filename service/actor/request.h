// What every actor understands: the number of a request, and a ping that asks whether it runs.
#pragma once

#include <cstdint>

namespace headrace::service {

// A number by which whoever asked finds what waits for the answer when it comes.
using RequestToken = std::uint64_t;

// Whether the actor turns. Dispatch answers by Pong, and by one LaneAnswered for each lane, as the
// lanes come to it; the others by PartAnswered.
struct Ping {
  RequestToken token = 0;
};

}  // namespace headrace::service
