// The messages to watch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "service/actor/request.h"
#include "service/plan/planner.h"

namespace headrace::service {

// Something a person should know: logged and put on the board.
struct Event {
  Code code = Code::kOk;  // kOk: not an error
  JobId job;              // 0: none
  std::string text;
  // Whose doing it is: it counts among the events that one uid may cause. None: no client's.
  std::optional<std::uint32_t> uid{};
};
// Answered by PlanMade.
struct MakePlan {
  RequestToken token = 0;
  plan::Policy policy = plan::Policy::kExact;
  plan::Profile profile;
  plan::Route route;
  plan::Recording recording{};        // none: the profile is all that is known
  std::vector<CodecChoice> codecs{};  // of each tensor; none: all cross as they are
  std::uint32_t version = 1;
  // The plan in force; null: none, or one that is to be replaced in any case.
  std::shared_ptr<const plan::Plan> present;
  double iteration_s = 0;  // as it was seen under that one; 0: not known
  double running_s = 0;    // of it: nobody stood still for gradients
  double margin = 0;  // share of the iteration by which a new plan must be faster than the present
  double tolerance = 0;           // share by which the present plan's prediction may be wrong
  std::uint32_t codec_stops = 0;  // how often its plans have stopped encoding what they may
};
using WatchMessage = std::variant<Event, MakePlan, Ping>;

}  // namespace headrace::service
