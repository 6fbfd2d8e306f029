// Messages from leaders and followers to the actors of their own service. Plain values.
#pragma once

#include <cstddef>
#include <variant>

#include "service/dispatch/messages.h"
#include "service/lane/messages.h"
#include "service/watch/messages.h"

namespace headrace::service {

struct ToDispatch {
  std::variant<JobForming, JobFormed, JobFailed, RankLeft, PlanOffer, PlanSwitch, SteerJob> message;
};
struct ToLane {
  std::size_t lane = 0;  // index among the lanes between nodes
  LaneMessage message;
};
// Requests for plans, and events for users.
struct ToWatch {
  std::variant<Event, MakePlan> message;
};

}  // namespace headrace::service
