// The messages to mapping. A message owns what it carries; its receiver owns the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"
#include "ipc/base/ids.h"
#include "service/actor/request.h"
#include "service/schedule/queue.h"
#include "service/session/scratch_memory.h"
#include "service/session/segment_memory.h"
#include "service/session/session.h"
#include "transport/memory/pinned_memory.h"
#include "transport/transport.h"

namespace headrace::service {

// Answered by SegmentMapped, in any case.
struct MapSegment {
  UniqueFd memory;
  std::uint64_t size = 0;
  RequestToken token = 0;
  SessionId session{};
  std::uint32_t uid = 0;  // of the session; uids take turns
};
// Maps a GPU's memory for all GPUs that reach it. Answered by SegmentMapped, in any case.
struct MapDeviceSegment {
  DeviceHandle handle;
  std::vector<UniqueFd> fds;
  RequestToken token = 0;
  SessionId session{};
  std::uint32_t uid = 0;
};
// The lease has ended: what is still to be mapped for it is not.
struct CancelMapping {
  SessionId session;
};
// To be unmapped and closed; no lane uses the memory any more.
struct DiscardSession {
  std::unique_ptr<Session> session;
  transport::PinnedRange pinned{};  // of its memory; goes first
};
struct DiscardMemory {
  SegmentMemory memory;
  std::uint32_t uid = 0;  // whose it was
};
// Memory for blocks of GPUs that go to other nodes: a GPU's, or pinned memory of the host, also
// where the GPU has none to give. It is booked on the job's user. Answered by ScratchMade.
struct MakeScratch {
  JobId job;
  std::uint32_t uid = 0;  // the job's; uids take turns
  schedule::TrafficClass traffic_class = schedule::TrafficClass::kPosted;
  std::int8_t gpu = transport::kHost;
  std::uint64_t place_bytes = 0;
  std::uint64_t places_count = 0;
  bool for_factors = false;  // of matrices that GPUs have; they pass the host, the matrices do not
};
// The job is over: what is still being made for it goes at once, and is not answered.
struct CancelScratch {
  JobId job;
};
// Gives it back; no lane uses it any more.
struct DiscardScratch {
  std::vector<ScratchMemory> memory;
  std::uint32_t uid = 0;
};
// Pins whole pages of host memory for all GPUs, which nobody unmaps before the answer:
// ResidualsPinned, in any case.
struct PinResiduals {
  JobId job;
  std::uint32_t uid = 0;
  std::span<std::byte> memory;
};
// It is not needed any more: the answer may be an error, kCancelled, and comes soon.
struct CancelPinning {
  JobId job;
};
// Pins the staging of a job's group on that lane, which a GPU is to encode into, in slices: booked
// on the job's user. Nobody frees it before it is unpinned, where that was done. Both are answered
// by StagingPinned, in any case.
struct PinStaging {
  std::uint8_t lane = 0;
  JobId job;
  std::uint32_t uid = 0;
  std::span<std::byte> memory;
};
struct UnpinStaging {
  std::uint8_t lane = 0;
  JobId job;
};
// Scratch of the host that dispatch has for sums of a job's that belong to no rank here. Mapping
// makes nothing of it.
struct UseHostScratch {
  JobId job;
};
// Memory of the service's own that is booked on a user.
using ScratchRequest = std::variant<MakeScratch, PinStaging, UseHostScratch>;
// Gives back memory of the service's own that was pinned; no lane uses it any more.
struct DiscardResiduals {
  Mapping memory;
  transport::PinnedRange pinned;
  std::uint32_t uid = 0;
};
using MappingMessage =
    std::variant<MapSegment, MapDeviceSegment, CancelMapping, DiscardSession, DiscardMemory,
                 MakeScratch, CancelScratch, DiscardScratch, PinResiduals, CancelPinning,
                 DiscardResiduals, PinStaging, UnpinStaging, Ping>;

}  // namespace headrace::service
