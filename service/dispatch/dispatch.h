// The dispatch actor: reads the clients' rings, keeps the jobs, drives operations through the flow.
//
// It owns every attached session. When it has seen a record, it first handles the messages from rpc
// and peers and then the record, so that a record never overtakes the registration it relies on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "service/actor/actor.h"
#include "service/actor/outgoing.h"
#include "service/actor/request.h"
#include "service/actor/sleeper.h"
#include "service/dispatch/lanes/lane_port.h"
#include "service/dispatch/messages.h"
#include "service/dispatch/standstill.h"
#include "service/mapping/messages.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/watch/board_writer.h"
#include "service/watch/messages.h"

namespace headrace::service {

class Job;
struct Failure;

class Dispatch final : public Actor {
 public:
  // All references outlive dispatch.
  Dispatch(Wakeable& thread, Doorbells& doorbells, InboxWriter<RpcMessage>& rpc,
           InboxWriter<PeersMessage>& peers, InboxWriter<WatchMessage>& watch,
           InboxWriter<MappingMessage>& mapping, ipc::BoardLayout& board);

  ~Dispatch() override;

  // Before the first work: the lanes, whose actors report back to inbox().
  void ConnectLanes(std::vector<LanePort> lanes);
  // From now on operations and blocks that wait longer than that are reported.
  void ReportLate(TimeNs after_ns);
  // From now on jobs that collide on a lane are shifted against each other.
  void Interleave();

  // Operations and gradients that one uid may have open; 0: any number.
  void LimitPosts(std::uint64_t per_uid);
  // What codecs cost on this machine, and those that GPUs have on them.
  void SetCodecCosts(std::vector<CodecCost> costs, std::span<const CodecCost> of_gpus = {});
  // For jobs with all ranks on this node; see JobNodes::verify.
  void Verify(std::uint32_t every);

  std::string_view name() const override { return "dispatch"; }
  bool DoWork(TimeNs now) override;
  bool PrepareToSleep() override;
  void Awake() override;
  TimeNs NextDeadline() const override;

  Inbox<DispatchMessage>& inbox() { return inbox_; }

 private:
  struct Parts;  // what works on the jobs
  // One attached rank whose ring is read.
  struct Reading {
    Session* session = nullptr;  // owned by its job
    Job* job = nullptr;
  };

  bool Turn(TimeNs now);
  // The service stood still: deadlines of open work are moved by that time.
  void Postpone(TimeNs lost_ns, TimeNs now);
  // Sends messages that did not fit into others' inboxes. Returns whether anything was sent.
  bool Flush(TimeNs now);
  void ReportDrops(std::uint64_t drops, TimeNs now);
  bool HandleInbox(TimeNs now);
  bool ReadRings(TimeNs now);
  bool ReadRing(std::size_t index, TimeNs now);
  // Reads the records that a rank posted before its message that it leaves, which overtakes them.
  void ReadRest(SessionId id, TimeNs now);
  // Reads one record, which is there. A corrupt ring closes its session.
  void ReadRecord(const Reading& reading, TimeNs now);

  void Handle(OpenSession message, TimeNs now);
  void Handle(AddSegment message, TimeNs now);
  void Handle(const RemoveSegment& message, TimeNs now);
  void Handle(AddTensors message, TimeNs now);
  void Handle(const RemoveTensors& message, TimeNs now);
  void Handle(const CloseSession& message, TimeNs now);
  void Handle(const Ping& message, TimeNs now);
  void Handle(const Drain& message, TimeNs now);
  void Handle(const StageEnded& message, TimeNs now);
  void Handle(const LaneFacts& message, TimeNs now);
  void Handle(const LaneMoved& message, TimeNs now);
  void Handle(const JobForming& message, TimeNs now);
  void Handle(JobFormed message, TimeNs now);
  void Handle(const JobFailed& message, TimeNs now);
  void Handle(const RankLeft& message, TimeNs now);
  void Handle(const SetLayout& message, TimeNs now);
  void Handle(const PlanOffer& message, TimeNs now);
  void Handle(const PlanSwitch& message, TimeNs now);
  void Handle(const ResidualsRefused& message, TimeNs now);
  void Handle(const SteerJob& message, TimeNs now);
  void Handle(const StageWaits& message, TimeNs now);
  void Handle(LaneAnswered m, TimeNs /*now*/) { rpc_.TrySend(std::move(m)); }  // as a Pong
  void Handle(const QuotaRefused& m, TimeNs /*now*/) { board_.counters.quota_refusals += m.times; }
  void Handle(const StagingWanted& message, TimeNs now);
  void Handle(const StagingPinned& message, TimeNs now);
  void Handle(const ScratchBooked& message, TimeNs now);
  void Handle(ScratchMade message, TimeNs now);
  void Handle(ResidualsPinned message, TimeNs now);
  void Handle(SendNotices message, TimeNs now);
  void Handle(const ReceivePosted& message, TimeNs now);

  Job& FindOrOpenJob(const SessionIdentity& identity, TimeNs now);
  Job* FindJob(JobId id);
  Reading* FindReading(SessionId id);
  void Close(SessionId id, bool orderly, Code code, const std::string& cause, TimeNs now);
  void CloseSpanning(Job& job, std::uint32_t rank, bool orderly, const Failure& failure,
                     TimeNs now);
  void CancelPinning(Job& job);
  void DiscardGone(TimeNs now);
  void FinishDrain(TimeNs now);
  void PublishRows();
  void Answer(RpcMessage message);
  void Report(PeersMessage message);

  Doorbells& doorbells_;
  Outgoing<RpcMessage> rpc_;
  Outgoing<PeersMessage> peers_;
  Outgoing<WatchMessage> watch_;
  Outgoing<MappingMessage> mapping_;
  std::uint64_t drops_reported_ = 0;
  TimeNs drops_tried_ns_ = 0;
  Inbox<DispatchMessage> inbox_;
  BoardWriter board_;
  std::unique_ptr<Parts> parts_;  // once the lanes are known
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<Reading> readings_;
  std::uint64_t readings_version_ = 0;  // grows when readings_ changes
  std::vector<DispatchMessage> messages_;
  Standstill standstill_;
  std::uint32_t catch_up_turns_ = 0;
  TimeNs drain_deadline_ = kNever;
  bool draining_ = false;
  bool drained_ = false;
  bool slept_ = false;
};

}  // namespace headrace::service
