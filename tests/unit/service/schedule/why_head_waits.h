// Why the head of one order waits, looked up among the queue's explanations of all heads.
#pragma once

#include "service/schedule/queue.h"

namespace headrace::schedule {

// kNone if the order has no waiting stage, or if its head would be picked now.
inline Wait WhyHeadWaits(UnifiedQueue& queue, JobId job, TrafficClass traffic_class,
                         std::uint8_t lane, TimeNs now) {
  for (const UnifiedQueue::HeadWaits& head : queue.ExplainHeads(lane, now)) {
    if (head.stage.job == job && head.stage.traffic_class == traffic_class) return head.wait;
  }
  return {};
}

}  // namespace headrace::schedule
