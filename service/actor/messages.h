// Everything one actor says to another. Messages own what they carry; whoever takes one owns it.
//
//   rpc --OpenSession, AddSegment, ...--> dispatch --StartStage--> lane
//    ^  \--MapSegment--> mapping --SegmentProgress, SegmentMapped--> rpc
//    |                         \--StageEnded--> dispatch
//    \--SessionBroken, SegmentRemoved, Pong-- dispatch --Discard--> mapping, --Event--> watch
//
// A job whose ranks are on several nodes needs more: peers hears of its ranks, joins it at its
// rendezvous, opens a group for it on each lane between nodes, and tells dispatch when blocks may
// travel. Whatever ends a job there ends it with rpc too.
//
//   rpc --CheckRank, RankAttached, RankEnded--> peers --JobFailed, Answered--> rpc
//   peers --JobForming, JobFormed, JobFailed, RankLeft--> dispatch
//    ^  \--OpenGroup, MeasureGroup, SetCost, CloseGroup--> lane --GroupOpened, GroupMeasured-->
//    peers
//    \--JobBroken, RankDone, JobEnded-- dispatch
//
// A job that has handed in its layout moves its gradients by a plan:
//
//   rpc --HandInLayout--> peers --SetLayout, OfferPlan, SwitchPlan--> dispatch
//    ^--Answered------------/ ^ \--MakePlan--> watch --PlanMade--> peers
//                             \--PlanTaken, TimesSeen-- dispatch
//
// What people ask, and what they are told:
//
//   rpc --ChangeSetting, ListPeers--> peers --SteerJob--> dispatch --SetShare, AskStage--> lane
//    ^--Answered, PeersListed--------/ ^--JobLate, SteerNodes,   ^--StageWaits-------------/
//                                         BlockHashed----------/
//   rpc --TryPeer--> peers --PeerTried--> rpc
//   http --AskProbe--> rpc --Ping--> dispatch, peers, watch, mapping --Pong, PartAnswered--> rpc
//    ^--ProbeEnded------/   dispatch --ProbeLane--> lane --LaneAnswered--> dispatch --> rpc
//
// Everybody sends Events to watch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ipc/base/device_handle.h"
#include "ipc/base/fd.h"
#include "ipc/base/ids.h"
#include "ipc/base/result.h"
#include "service/actor/inbox.h"
#include "service/actor/probe_answer.h"
#include "service/plan/planner.h"
#include "service/schedule/queue.h"
#include "service/session/block_hash.h"
#include "service/session/layout.h"
#include "service/session/nodes.h"
#include "service/session/scratch_memory.h"
#include "service/session/session.h"
#include "service/session/steering.h"
#include "transport/network.h"
#include "transport/transport.h"

namespace headrace::service {

// A number by which whoever asked finds what waits for the answer when it comes.
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
// Whether the actor turns. Dispatch answers by Pong, and by one LaneAnswered for each lane, as the
// lanes come to it; the others by PartAnswered.
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
  TimeNs flowed_ns = 0;  // transport::Transport::FlowedNs
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
// The session's gradients: tensors first, first + 1, ... as rpc has checked and registered
// them; a session that has ended meanwhile is ignored.
struct SetLayout {
  SessionId session;
  TensorId first;
  std::shared_ptr<const Layout> layout;  // shared by peers and dispatch, which only read it
};
// A plan for the job's gradients. All ranks' layouts are known and equal by then, and the plan has
// been checked against them. Answered by PlanTaken; in force only after SwitchPlan.
struct OfferPlan {
  JobId job;
  std::shared_ptr<const plan::Plan> plan;  // shared by peers and dispatch, which only read it
  std::uint64_t hash = 0;
};
// Every node holds the plan of that version: it moves iteration `from_iteration` and later ones.
struct SwitchPlan {
  JobId job;
  std::uint32_t version = 0;
  std::uint64_t from_iteration = 0;
};
// Rpc refused sessions or memory for a quota so many times; dispatch keeps the board's count.
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
  TimeNs flowed_ns = 0;       // as StageEnded's
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
// The answer to ProbeLane; dispatch passes it on to rpc.
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

// ---- to rpc ----
// The answer to MapSegment, whose memory's page tables are filled, and to MapDeviceSegment.
struct SegmentMapped {
  RequestToken token = 0;
  Result<SegmentMemory> memory;
  std::uint32_t uid = 0;  // as it was asked for
};
// How much of a segment is mapped so far; sent a few times a second. May get lost.
struct SegmentProgress {
  RequestToken token = 0;
  std::uint64_t bytes = 0;
};
struct SegmentRemoved {
  RequestToken token = 0;
  Status status;
};
struct Pong {
  RequestToken token = 0;
  std::uint32_t lanes_count = 0;
};
// The session's ring cannot be trusted any more: rpc ends the lease with this error.
struct SessionBroken {
  SessionId session;
  Error error;
};
// Nothing is open any more; all sessions may be closed.
struct Drained {};
// The answer of an actor other than dispatch to Ping.
enum class ProbedPart : std::uint8_t { kPeers, kWatch, kMapping };
struct PartAnswered {
  RequestToken token = 0;
  ProbedPart part = ProbedPart::kPeers;
};
// The answer of peers to CheckRank, HandInLayout, ChangeSetting and StopPeers.
struct Answered {
  RequestToken token = 0;
  Status status;
};
// Another service, for people.
struct PeerView {
  std::string name{};  // of the node; empty while it has not said it
  std::string address{};
  bool leads = false;  // this service is a node of its jobs; else it is one of ours
  bool connected = false;
  std::string why{};           // it is not connected; empty: no job needs it now
  bool refused = false;        // because one of the two would not have the other
  TimeNs round_trip_ns = -1;   // -1: none yet
  TimeNs clock_offset_ns = 0;  // its clock less ours by that round trip
};
// What came of an attempt to reach a service at an address, step by step, up to the first that
// failed.
struct PeerStep {
  std::string name;  // "name", "port", "handshake", "version"
  Status status{};
  std::string found;  // of a step that went well, for people
};
struct PeerTried {
  RequestToken token = 0;
  std::vector<PeerStep> steps;
};
struct PeersListed {
  RequestToken token = 0;
  std::vector<PeerView> peers;
};
// Http wants a probe. Answered by ProbeEnded.
struct AskProbe {
  RequestToken token = 0;
};
// An event loop has ended, and what it did is done by nobody.
struct LoopFailed {
  std::string cause;
};
// A GPU's context is broken, for that cause: CUDA gives it back to no process but a new one.
struct GpuBroken {
  std::string cause;
};
// JobFailed: the job takes no rank until all are gone.
using RpcMessage = std::variant<SegmentMapped, SegmentProgress, SegmentRemoved, Pong, SessionBroken,
                                Drained, LaneAnswered, PartAnswered, JobFailed, Answered,
                                PeersListed, PeerTried, AskProbe, LoopFailed, GpuBroken>;

// ---- to peers ----
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
// What the ranks of this node have got in one block, for the job's leader to compare. May get lost:
// that block is then not compared.
struct BlockHashed {
  JobId job;
  BlockHash hash;
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
// Whether a rank of a job with a rendezvous may attach, as far as the other nodes go.
struct CheckRank {
  RequestToken token = 0;
  std::string job;
  std::uint32_t rank = 0;
};
// A rank has its seat.
struct RankAttached {
  SessionIdentity identity;
};
// Its lease has ended. Sent before dispatch is told, so that what dispatch says of it comes later.
struct RankEnded {
  SessionIdentity identity;
  bool orderly = false;
  std::string cause;
  bool exited = false;  // its process
};
// The session's gradients are tensors first, first + 1, ... Peers compares the layout with those of
// the job's other ranks and sends SetLayout to dispatch; one that differs ends the job.
struct HandInLayout {
  RequestToken token = 0;
  SessionIdentity identity;
  TensorId first;
  std::shared_ptr<const Layout> layout;
  std::optional<plan::Policy> policy;
};
// A person wants another policy for a job, or steers it; the value was checked.
struct ChangeSetting {
  RequestToken token = 0;
  std::string job;
  std::uint32_t uid = 0;
  std::variant<plan::Policy, Steering> setting;
};
// Whether the certificate's files have changed is looked at now.
struct LookAtCertificate {};
// Answered by PeersListed.
struct ListPeers {
  RequestToken token = 0;
};
// Reaches the service at that address as a job's first rank would, and leaves it again. Answered by
// PeerTried.
struct TryPeer {
  RequestToken token = 0;
  std::string address;
};
// The service is stopping: no other service is let in any more.
struct DrainPeers {};
// The connections say goodbye. Answered soon, also where nobody hears it.
struct StopPeers {
  RequestToken token = 0;
};
// What does the job wait for before it can run? Answered by Answered: ok when for nothing.
struct AskForming {
  RequestToken token = 0;
  JobId job;
};
// A rank of a job of several nodes got no session, for a reason that waiting does not mend.
struct RankRefused {
  std::string job;
  std::string leader;  // the job's rendezvous, as in SessionIdentity
  std::uint32_t world_size = 1;
  std::string architecture;
  std::uint32_t uid = 0;
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  Code code = Code::kOk;
  std::string cause;
};
using PeersMessage =
    std::variant<JobBroken, RankDone, JobEnded, GroupOpened, GroupMeasured, PlanTaken, TimesSeen,
                 PlanMade, JobLate, BlockHashed, SteerNodes, CheckRank, RankRefused, RankAttached,
                 RankEnded, HandInLayout, AskForming, ChangeSetting, ListPeers, TryPeer,
                 LookAtCertificate, DrainPeers, StopPeers, Ping>;

// ---- to http ----
struct ProbeEnded {
  RequestToken token = 0;
  ProbeAnswer answer;
};
using HttpMessage = std::variant<ProbeEnded>;

// ---- to mapping ----
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
};
struct DiscardMemory {
  SegmentMemory memory;
  std::uint32_t uid = 0;  // whose it was
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
using MappingMessage = std::variant<MapSegment, MapDeviceSegment, CancelMapping, DiscardSession,
                                    DiscardMemory, MakeScratch, DiscardScratch, Ping>;

// ---- to watch ----
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
  std::uint32_t version = 1;
  // The plan in force; null: none, or one that is to be replaced in any case.
  std::shared_ptr<const plan::Plan> present;
  double iteration_s = 0;  // as it was seen under that one; 0: not known
  double running_s = 0;    // of it: nobody stood still for gradients
  double margin = 0;  // share of the iteration by which a new plan must be faster than the present
};
using WatchMessage = std::variant<Event, MakePlan, Ping>;

}  // namespace headrace::service
