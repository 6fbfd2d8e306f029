// The messages to a lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "ipc/base/result.h"
#include "service/actor/request.h"
#include "service/session/send_notices.h"
#include "transport/network.h"
#include "transport/transport.h"

namespace headrace::service {

struct StartStage {
  transport::Transfer transfer;
};
struct CancelStage {
  std::uint64_t token = 0;
};
// Whom a stage waits for. Answered by StageWaits, or, when it has ended, not at all.
struct AskStage {
  std::uint64_t token = 0;
};
// A round trip through the lane's own thread; inside the node it also sums a few bytes. Answered by
// LaneAnswered.
struct ProbeLane {
  RequestToken token = 0;
};
// The rest goes to lanes between nodes only. Answered by GroupOpened.
struct OpenGroup {
  transport::GroupOptions options;
};
// Once the group is open on every node, all of them measure it at the same time. Answered by
// GroupMeasured.
struct MeasureGroup {
  std::uint32_t group = 0;
};
struct SetCost {
  std::uint32_t group = 0;
  transport::CostLine cost;
};
// Ends the group's transfers; StageEnded for each of them follows.
struct CloseGroup {
  std::uint32_t group = 0;
  std::string cause;
};
// The job's share of the lane from now on: see transport::NetworkTransport::SetShare.
struct SetShare {
  std::uint32_t group = 0;
  transport::Share share;
};
// The answer to PinStaging and UnpinStaging, which dispatch passes on to the lane: where GPUs find
// it, null once it is unpinned, or why not.
struct StagingPinned {
  std::uint8_t lane = 0;
  std::uint32_t group = 0;
  Result<std::byte*> on_gpus;
};
// For the dispatch of another node of the group `job`; what comes from there goes to this one's.
using LaneMessage =
    std::variant<StartStage, CancelStage, AskStage, ProbeLane, OpenGroup, MeasureGroup, SetCost,
                 CloseGroup, SetShare, StagingPinned, SendNotices>;

}  // namespace headrace::service
