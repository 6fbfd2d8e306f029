// Everything one actor says to another. Messages own what they carry; whoever takes one owns it.
//
//   control --OpenSession, AddSegment, ...--> dispatch --StartStage--> lane
//      ^  \--MapSegment--> watch --SegmentMapped--> control   \--StageEnded--> dispatch
//      \--SessionBroken, SegmentRemoved, Pong-- dispatch --Discard, Event--> watch
//
// A job whose ranks are on several nodes needs more: control joins it at its rendezvous, opens a
// group for it on each lane between nodes, and tells dispatch when blocks may travel.
//
//   control --JobForming, JobFormed, JobFailed, RankLeft--> dispatch
//      ^  \--OpenGroup, MeasureGroup, SetCost, CloseGroup--> lane --GroupOpened, GroupMeasured-->
//      control
//      \--JobBroken, RankDone, JobEnded-- dispatch
//
// A job that has handed in its layout moves its gradients by a plan:
//
//   control --SetLayout, OfferPlan, SwitchPlan--> dispatch --PlanTaken, TimesSeen--> control
//      ^  \--MakePlan--> watch --PlanMade--> control
//
// What people ask, and what they are told:
//
//   control --SteerJob, Ping--> dispatch --SetShare, AskStage, ProbeLane--> lane
//      ^                           ^  \--JobLate, Pong, LaneAnswered--> control
//      |                            \--StageWaits, LaneAnswered-- lane
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/actor/inbox.h"
#include "service/plan/planner.h"
#include "service/schedule/queue.h"
#include "service/session/layout.h"
#include "service/session/nodes.h"
#include "service/session/scratch_memory.h"
#include "service/session/session.h"
#include "service/session/steering.h"
#include "transport/network.h"
#include "transport/transport.h"

namespace headrace::service {

// A number by which control finds the waiting RPC when the answer comes.
using RequestToken = std::uint64_t;

// ---- to dispatch ----
// A rank has joined. The first session of a job brings the job into being.
struct OpenSession {
  std::unique_ptr<Session> session;
};
struct AddSegment {
  SessionId session;
  SegmentId segment;
  SegmentMemory memory;
};
// Answered by SegmentRemoved: refused while tensors or open operations use it.
struct RemoveSegment {
  SessionId session;
  SegmentId segment;
  RequestToken token = 0;
};
// ids are `first`, `first` + 1, ...; checked by control against the segment's size.
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
  std::string cause;  // "exited or was killed", "left the job", ...
};
// Answered by Pong, and by one LaneAnswered for each lane, as the lanes come to it.
struct Ping {
  RequestToken token = 0;
};
// Accept no new operation; `deadline_ns` is when to end what is still open. Answered by Drained.
struct Drain {
  TimeNs deadline_ns = 0;
};
struct StageEnded {
  std::uint8_t lane = 0;
  transport::Completion completion;
};
// What a lane between nodes knows of its wires; sent again when it has changed, a few times a
// second at most.
struct LaneFacts {
  std::uint8_t lane = 0;
  std::string wires;  // "tcp/eth0"
  std::uint64_t messages_dropped = 0;
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
// The job cannot go on, for a cause on another node or on the way to it. Ends what is open.
struct JobFailed {
  JobId job;
  Code code = Code::kInternal;
  std::string cause;
};
// A rank on another node has left in an orderly way after its first `posted` operations.
struct RankLeft {
  JobId job;
  std::uint32_t rank = 0;
  std::uint64_t posted = 0;      // operations, gradients not counted
  std::uint64_t iterations = 0;  // of which it posted every gradient
  std::string cause;             // "rank 3 (pid 12) on node b left the job"
};
// The session's gradients: tensors first, first + 1, ... as control has checked and registered
// them.
struct SetLayout {
  SessionId session;
  TensorId first;
  std::shared_ptr<const Layout> layout;  // shared by control and dispatch, which only read it
};
// A plan for the job's gradients. All ranks' layouts are known and equal by then, and the plan has
// been checked against them. Answered by PlanTaken; in force only after SwitchPlan.
struct OfferPlan {
  JobId job;
  std::shared_ptr<const plan::Plan> plan;  // shared by control and dispatch, which only read it
  std::uint64_t hash = 0;
};
// Every node holds the plan of that version: it moves iteration `from_iteration` and later ones.
struct SwitchPlan {
  JobId job;
  std::uint32_t version = 0;
  std::uint64_t from_iteration = 0;
};
// Control refused sessions or memory for a quota so many times; dispatch keeps the board's count.
struct QuotaRefused {
  std::uint64_t times = 0;
};
// A person steers the job; who may was checked.
struct SteerJob {
  JobId job;
  Steering steering;
};
// The answer to AskStage, while the stage is open.
struct StageWaits {
  std::uint8_t lane = 0;
  std::uint64_t token = 0;    // of the stage
  std::uint64_t members = 0;  // bit i: nothing came from member i of the group; 0: nobody's fault
};
// The answer to MakeScratch.
struct ScratchMade {
  JobId job;
  schedule::Order order = schedule::Order::kPosted;
  std::int8_t gpu = transport::kHost;  // as it was asked for
  std::uint64_t place_bytes = 0;
  Result<ScratchMemory> memory;
  std::string instead{};  // why it is the host's memory and not that GPU's; empty: as asked for
};
// The answer to ProbeLane; dispatch passes it on to control.
struct LaneAnswered {
  std::uint8_t lane = 0;
  RequestToken token = 0;
  Status status{};
};
using DispatchMessage =
    std::variant<OpenSession, AddSegment, RemoveSegment, AddTensors, RemoveTensors, CloseSession,
                 Ping, Drain, StageEnded, LaneFacts, JobForming, JobFormed, JobFailed, RankLeft,
                 SetLayout, OfferPlan, SwitchPlan, SteerJob, StageWaits, LaneAnswered, QuotaRefused,
                 ScratchMade>;

// ---- to a lane ----
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
using LaneMessage = std::variant<StartStage, CancelStage, AskStage, ProbeLane, OpenGroup,
                                 MeasureGroup, SetCost, CloseGroup, SetShare>;

// ---- to control ----
// The answer to MapSegment, whose memory is populated, and to MapDeviceSegment.
struct SegmentMapped {
  RequestToken token = 0;
  Result<SegmentMemory> memory;
};
struct SegmentRemoved {
  RequestToken token = 0;
  Status status;
};
struct Pong {
  RequestToken token = 0;
  std::uint32_t lanes_count = 0;
};
// The session's ring cannot be trusted any more: control ends the lease with this error.
struct SessionBroken {
  SessionId session;
  Error error;
};
// Nothing is open any more; all sessions may be closed.
struct Drained {};
// The first failure of a job of several nodes that was found on this node: the others must hear.
struct JobBroken {
  JobId job;
  Code code = Code::kInternal;
  std::string cause;
};
// A local rank of a job of several nodes has left in an orderly way; it had posted that much.
struct RankDone {
  JobId job;
  std::uint32_t rank = 0;
  std::uint64_t posted = 0;      // operations, gradients not counted
  std::uint64_t iterations = 0;  // of which it posted every gradient
};
// Dispatch has forgotten the job: all its local ranks are gone and nothing is open.
struct JobEnded {
  JobId job;
};
struct GroupOpened {
  std::uint8_t lane = 0;
  std::uint32_t group = 0;
  Status status;
};
struct GroupMeasured {
  std::uint8_t lane = 0;
  std::uint32_t group = 0;
  Result<transport::CostLine> cost;
};
// The answer to OfferPlan. `iteration` is the last one of which a block has begun; until SwitchPlan
// comes, none from `iteration` + kSwitchSlack on will be begun (and none at all before the first
// plan), so that any node may name that iteration as the first under the new plan.
inline constexpr std::uint64_t kSwitchSlack = 8;
struct PlanTaken {
  JobId job;
  std::uint32_t version = 0;
  std::uint64_t iteration = 0;
};
// How some iterations went on this node, and what the lanes cost meanwhile (the first is the one
// inside the node). Sent after the first few iterations, and then again every now and then.
struct TimesSeen {
  JobId job;
  NodeTimes times;
  std::vector<transport::CostLine> costs;
};
// An operation of the job waits longer than it should for a rank of this node; people on its other
// nodes should hear of it.
struct JobLate {
  JobId job;
  std::string
      text;  // "rank 3 (pid 12) on node b has not posted ... for 5.0 s; 7 ranks wait for it"
};
// To be told to every node of the job, this one too, in one order for all, as a person's wish is.
struct SteerNodes {
  JobId job;
  Steering steering;
};
// The answer to MakePlan.
struct PlanMade {
  RequestToken token = 0;
  // Null: the plan in force is as good, within the margin that was asked for.
  Result<std::shared_ptr<const plan::Plan>> plan;
};
using ControlMessage =
    std::variant<SegmentMapped, SegmentRemoved, Pong, SessionBroken, Drained, JobBroken, RankDone,
                 JobEnded, GroupOpened, GroupMeasured, PlanTaken, TimesSeen, PlanMade, JobLate,
                 LaneAnswered, SteerNodes>;

// ---- to watch: what may take long ----
struct MapSegment {
  UniqueFd memory;
  std::uint64_t size = 0;
  RequestToken token = 0;
};
// Maps a GPU's memory for all GPUs that reach it. Answered by SegmentMapped.
struct MapDeviceSegment {
  DeviceHandle handle;
  std::vector<UniqueFd> fds;
  RequestToken token = 0;
};
// Unmaps when the message is destroyed; no lane uses the memory any more.
struct DiscardSession {
  std::unique_ptr<Session> session;
};
struct DiscardMemory {
  SegmentMemory memory;
};
// Memory for blocks of GPUs that go to other nodes: a GPU's, or pinned memory of the host, also
// where the GPU has none to give. Answered by ScratchMade.
struct MakeScratch {
  JobId job;
  schedule::Order order = schedule::Order::kPosted;
  std::int8_t gpu = transport::kHost;
  std::uint64_t place_bytes = 0;
  std::uint64_t places_count = 0;
};
// Gives it back; no lane uses it any more.
struct DiscardScratch {
  std::vector<ScratchMemory> memory;
};
// Something a person should know: logged and put on the board.
struct Event {
  Code code = Code::kOk;  // kOk: not an error
  JobId job;              // 0: none
  std::string text;
};
// Answered by PlanMade.
struct MakePlan {
  RequestToken token = 0;
  plan::Policy policy = plan::Policy::kExact;
  plan::Profile profile;
  plan::Route route;
  std::uint32_t version = 1;
  // The plan in force; null: none, or one that is to be replaced in any case.
  std::shared_ptr<const plan::Plan> present;
  double margin = 0;  // share of the iteration by which a new plan must be faster than the present
};
using WatchMessage = std::variant<MapSegment, MapDeviceSegment, DiscardSession, DiscardMemory,
                                  MakeScratch, DiscardScratch, Event, MakePlan>;

}  // namespace headrace::service
