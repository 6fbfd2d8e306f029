// The messages to dispatch. A message owns what it carries; its receiver owns the message.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/error.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/actor/request.h"
#include "service/lane/messages.h"
#include "service/mapping/messages.h"
#include "service/plan/plan.h"
#include "service/schedule/queue.h"
#include "service/session/facts.h"
#include "service/session/layout.h"
#include "service/session/nodes.h"
#include "service/session/scratch_memory.h"
#include "service/session/send_notices.h"
#include "service/session/session.h"
#include "transport/memory/pinned_memory.h"
#include "transport/transport.h"

namespace headrace::service {

// A rank has joined. The first session of a job brings the job into being.
struct OpenSession {
  std::unique_ptr<Session> session;
};
struct AddSegment {
  SessionId session;
  SegmentId segment;
  SegmentMemory memory;
  std::uint32_t uid = 0;  // of the session
};
// Answered by SegmentRemoved: refused while tensors or open operations use it.
struct RemoveSegment {
  SessionId session;
  SegmentId segment;
  RequestToken token = 0;
};
// ids are `first`, `first` + 1, ...; checked by rpc against the segment's size.
struct AddTensors {
  SessionId session;
  TensorId first;
  std::vector<Tensor> tensors;
};
struct RemoveTensors {
  SessionId session;
  TensorId first;
  std::uint32_t count = 0;
};
// The lease ended: the socket closed (lost) or the client said it leaves (orderly).
struct CloseSession {
  SessionId session;
  bool orderly = false;
  std::string cause;    // "exited or was killed", "left the job", ...
  bool exited = false;  // its process, which cannot come back as that rank
};
// Accept no new operation; `deadline_ns` is when to end what is still open. Answered by Drained.
struct Drain {
  TimeNs deadline_ns = 0;
};
struct StageEnded {
  std::uint8_t lane = 0;
  transport::Completion completion;
  TimeNs flowed_ns = 0;  // transport::Transport::FlowedNs
};
// What a lane between nodes knows of its wires; sent again when it has changed, a few times a
// second at most.
struct LaneFacts {
  std::uint8_t lane = 0;
  std::string wires;  // "tcp/eth0"
  std::uint64_t messages_dropped = 0;
};
// What a lane between nodes sends to another node of the job, it sends over another rail from now
// on; the job's number is its group's.
struct LaneMoved {
  std::uint8_t lane = 0;
  JobId job;
  std::uint32_t node = 0;
  transport::LinkMove move;
};
// What a job of several nodes waits for before it can begin, for people: "node b: ranks 2, 3 of 4
// have not attached". Sent again whenever it changes.
struct JobForming {
  JobId job;
  std::string waits_for;
};
// All nodes of the job are linked: blocks may travel between them.
struct JobFormed {
  JobId job;
  JobNodes nodes;
};
// The session's gradients: tensors first, first + 1, ... as rpc has checked and registered
// them; a session that has ended meanwhile is ignored.
struct SetLayout {
  SessionId session;
  TensorId first;
  std::shared_ptr<const Layout> layout;  // shared by peers and dispatch, which only read it
  ResidualsPlace residuals;
};
// A plan for the job's gradients. All ranks' layouts are known and equal by then, and the plan has
// been checked against them. Answered by PlanAck; in force only after PlanSwitch.
struct PlanOffer {
  JobId job;
  std::shared_ptr<const plan::Plan> plan;  // shared by peers and dispatch, which only read it
  std::uint64_t hash = 0;
};
// Every node holds the plan of that version: it moves iteration `from_iteration` and later ones.
struct PlanSwitch {
  JobId job;
  std::uint32_t version = 0;
  std::uint64_t from_iteration = 0;
  double before_s = 0;  // an iteration until now, as the nodes saw it; 0: not known
  // Iterations of the job's earlier epochs, before this one's first.
  std::uint64_t iterations_before = 0;
};
// Rpc refused sessions or memory for a quota so many times; dispatch keeps the board's count.
struct QuotaRefused {
  std::uint64_t times = 0;
};
// The user of the session may not have the memory that ResidualsAllocated told of: the job's
// gradients cannot go on.
struct ResidualsRefused {
  SessionId session;
  Code code = Code::kExhausted;
  std::string cause{};
};
// The answer to AskStage, while the stage is open.
struct StageWaits {
  std::uint8_t lane = 0;
  std::uint64_t token = 0;    // of the stage
  std::uint64_t members = 0;  // bit i: nothing came from member i of the group; 0: nobody's fault
  TimeNs flowed_ns = 0;       // as StageEnded's
};
// A receive of another node's send is on the lane: what comes for it finds its memory.
struct ReceivePosted {
  std::uint8_t lane = 0;
  std::uint64_t token = 0;  // of the stage
};
// The lane wants the staging of the job's group pinned for GPUs, or unpinned. Answered by
// StagingPinned.
struct StagingWanted {
  std::uint8_t lane = 0;
  JobId job;
  std::span<std::byte> memory{};
  bool pin = true;
};
// The answer to BookScratch: the job's user may have it, or why not.
struct ScratchBooked {
  ScratchRequest request;
  Status status{};
};
// The answer to MakeScratch.
struct ScratchMade {
  JobId job;
  std::uint32_t uid = 0;
  schedule::TrafficClass traffic_class = schedule::TrafficClass::kPosted;
  std::int8_t gpu = transport::kHost;  // as it was asked for
  std::uint64_t place_bytes = 0;
  bool for_factors = false;
  Result<ScratchMemory> memory;
  std::string instead{};  // why it is the host's memory and not that GPU's; empty: as asked for
};
// The answer to PinResiduals.
struct ResidualsPinned {
  JobId job;
  Result<transport::PinnedRange> pinned;
};
// The answer to ProbeLane; dispatch passes it on to rpc.
struct LaneAnswered {
  std::uint8_t lane = 0;
  RequestToken token = 0;
  Status status{};
};
using DispatchMessage =
    std::variant<OpenSession, AddSegment, RemoveSegment, AddTensors, RemoveTensors, CloseSession,
                 Ping, Drain, StageEnded, LaneFacts, LaneMoved, JobForming, JobFormed, JobFailed,
                 RankLeft, SetLayout, PlanOffer, PlanSwitch, SteerJob, StageWaits, LaneAnswered,
                 QuotaRefused, ResidualsRefused, StagingWanted, StagingPinned, ScratchBooked,
                 ScratchMade, ResidualsPinned, SendNotices, ReceivePosted>;

}  // namespace headrace::service
