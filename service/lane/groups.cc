#include "service/lane/groups.h"

#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

void Groups::Handle(const LaneMessage& message, TimeNs /*now*/) {
  if (const auto* open = std::get_if<OpenGroup>(&message)) {
    Answer(GroupOpened{lane_, open->options.group, transport_.OpenGroup(open->options)});
  } else if (const auto* measure = std::get_if<MeasureGroup>(&message)) {
    Answer(GroupMeasured{lane_, measure->group, transport::CostLine{200e-6, 8e-9}});
  } else if (const auto* set = std::get_if<SetCost>(&message)) {
    transport_.SetCost(set->group, set->cost);
  } else if (const auto* close = std::get_if<CloseGroup>(&message)) {
    transport_.CloseGroup(close->group, close->cause);
  } else {
    HR_CHECK(false, message.index());
  }
}

void Groups::Ended(const transport::Completion&, TimeNs) {}

void Groups::Answer(ControlMessage message) {
  // One answer a question, and control has few of them open at a time.
  const bool sent = control_.Send(std::move(message));
  HR_CHECK(sent, lane_);
}

}  // namespace headrace::service
