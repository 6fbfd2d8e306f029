// A lane's inbox and properties, as dispatch needs them.
#pragma once

#include <cstdint>
#include <string>

#include "service/actor/inbox.h"
#include "service/lane/messages.h"

namespace headrace::service {

// What a lane is for. There is one for each place inside the node; those between nodes are rails,
// which share each block.
enum class LanePlace : std::uint8_t { kInNode, kInNodeOnGpus, kBetweenNodes };

// Rails come last.
struct LanePort {
  std::string name;
  std::string transport;
  std::uint32_t threads = 1;
  std::uint64_t credit_bytes = 0;
  InboxWriter<LaneMessage>* inbox = nullptr;  // outlives dispatch
  LanePlace place = LanePlace::kInNode;
  bool measures_flow = false;  // transport::Capabilities, as is the next
  std::uint32_t device_codecs = 0;
};

}  // namespace headrace::service
