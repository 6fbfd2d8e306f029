// The blocks of all jobs: made from ready operations in order, through the unified queue, over one
// lane after the other until each has all its steps behind it.
//
// Owned and called by the flow, on dispatch's thread. It tells by its answers: what an operation's
// end means for ranks and jobs is the flow's business.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "service/actor/messages.h"
#include "service/actor/outgoing.h"
#include "service/dispatch/company.h"
#include "service/dispatch/job.h"
#include "service/dispatch/recorder.h"
#include "service/schedule/queue.h"
#include "service/watch/board_writer.h"
#include "transport/probe/cost_keeper.h"

namespace headrace::service {

// What a lane is for. There is one for each place inside the node; those between nodes are rails,
// which share each block.
enum class LanePlace : std::uint8_t { kInNode, kInNodeOnGpus, kBetweenNodes };

// A lane as dispatch sees it. Rails come last.
struct LanePort {
  std::string name;
  std::string transport;
  std::uint32_t threads = 1;
  std::uint64_t credit_bytes = 0;
  Door<LaneMessage>* door = nullptr;  // outlives dispatch
  LanePlace place = LanePlace::kInNode;
  bool measures_flow = false;  // transport::Capabilities
};

using Jobs = std::vector<std::unique_ptr<Job>>;

class Blocks {
 public:
  Blocks(std::vector<LanePort> lanes, BoardWriter& board, Recorder& recorder,
         Outgoing<MappingMessage>& mapping);

  void AddJob(const Job& job, TimeNs now) {
    queue_.AddJob(job.id(), {});
    for (LaneState& lane : lanes_) lane.company.Comes(job.id(), job.share.priority, now);
  }
  void RemoveJob(Job& job);
  // Job::share is in force from now on. A lane between nodes is told, once the job's links are
  // open.
  void SetShare(Job& job, TimeNs now);

  // The operation, or block of the job's plan, is ready: its blocks follow those of earlier ones.
  void Begin(Job& job, Operation& operation, TimeNs now);
  bool HasRoom(const Job& job) const { return job.has_free_blocks(); }
  // How many blocks of the job's plan may be on one lane from now on.
  void SetPlannedInFlightMax(JobId job, std::uint64_t blocks_max) {
    queue_.SetPlannedInFlightMax(job, blocks_max);
  }

  // Memory that the job's blocks lacked has been made.
  void AddScratch(Job& job, struct ScratchMade made, TimeNs now);

  // A lane reports the end of a stage. The answer names its operation, and what went wrong.
  struct Ended {
    Operation& operation;
    std::optional<Failure> failure;
    std::optional<BlockHash> hash;  // of what all ranks of this node have got
  };
  Ended StageEnded(Job& job, const transport::Completion& completion, TimeNs now);

  // The operation has failed: takes what waits of it out of the queue and cancels what moves. It
  // has moved() when no lane has anything of it any more.
  void Abandon(Job& job, Operation& operation, TimeNs now);

  // Hands waiting stages to lanes that have credit.
  void Schedule(Jobs& jobs, TimeNs now);
  // When a stage may go that only a job's limit holds back; kNever when there is none.
  TimeNs next_time() const { return next_time_; }
  // A round trip through every lane; each answers but those whose inbox is full: bit i of the
  // result stands for lane i.
  std::uint64_t ProbeLanes(RequestToken token);
  // Once a turn: sends what lanes had no room for. Returns whether anything was sent.
  bool Flush(Jobs& jobs, TimeNs now);
  // When to call Flush if nothing else happens.
  TimeNs NextFlush() const;

  // The lines that were measured for a job between nodes: what a lane starts from.
  void TakeCosts(const std::vector<transport::CostLine>& costs);
  // For how long something has flowed on a lane that measures it.
  void TakeFlow(std::uint8_t lane, TimeNs flowed_ns);
  // What the lane itself knows of its wires.
  void TakeLaneFacts(const LaneFacts& facts);

  // What the job's blocks cost: on the lane inside the node that it uses, and on each rail, in
  // bytes that one node sends. A rate of 0 where nothing is known.
  std::vector<transport::CostLine> CostsOf(const Job& job) const;

  const std::string& LaneName(std::uint8_t lane) const { return lanes_[lane].port.name; }
  std::size_t lanes_count() const { return lanes_.size(); }
  // As the board shows it.
  const ipc::LaneRow& LaneNow(std::uint8_t lane) const { return lanes_[lane].row; }
  // For how long it has been at work: as it measures itself, else with a stage on it.
  TimeNs BusyNs(std::uint8_t lane) const { return lanes_[lane].busy_ns; }
  // The lane that an operation whose blocks are in different steps waits for.
  std::uint8_t LaneWaitedFor(Job& job, const Operation& operation) const;
  void SetReason(Job& job, Operation& operation, ipc::WaitReason reason, std::uint64_t argument);
  bool IsBetweenNodes(std::uint8_t lane) const {
    return lanes_[lane].port.place == LanePlace::kBetweenNodes;
  }

  // Asks the lanes between nodes that the operation is on whom it waits for, and shows the answer.
  void AskLanes(Job& job, const Operation& operation);
  void TakeStageWaits(Job& job, const StageWaits& message);

 private:
  struct LaneState {
    // Of starts and cancels at most as many wait as stages are in flight.
    Outgoing<LaneMessage> out;
    LanePort port;
    ipc::LaneRow row{};
    TimeNs busy_since = 0;
    TimeNs busy_ns = 0;
    transport::CostKeeper cost{transport::CostLine{}};
    TimeNs last_end_ns = 0;      // of a stage, as the lane has it
    TimeNs settled_ns = 0;       // when dispatch heard of the last one
    bool queue_changed = false;  // the board shows an older state of its queue
    Company company;             // inside the node
  };

  // The lane inside the node that carries the operation.
  std::uint8_t LaneInNode(const Operation& operation) const;
  // The lane's place among the job's samples: the one inside the node, then the rails.
  std::size_t SampleOf(std::uint8_t lane) const {
    return IsBetweenNodes(lane) ? lane - first_rail_ + std::size_t{1} : 0;
  }
  // What this node sends for a stage.
  std::uint64_t WireBytes(const Job& job, const schedule::Stage& stage) const;
  void AskForScratch(Job& job, schedule::Order order);
  void SendShare(Job& job);

  // Into blocks of what size the operation is cut; 0: it is one.
  std::uint64_t BlockBytes(const Job& job, const Operation& operation, TimeNs now) const;
  // Makes blocks of ready operations while there is room for them.
  void Make(Job& job, TimeNs now);
  void MakeOf(Job& job, schedule::Order order, TimeNs now);
  bool MakeNext(Job& job, Operation& operation, TimeNs now);
  // Puts the stages of the block's next step, from `step` on, into the queue, or ends the block.
  void Enter(Job& job, Operation& operation, Block& block, Step step, TimeNs now);
  void Cross(Job& job, schedule::Order order, TimeNs now);
  // Gives the block its place among those that go to other nodes.
  void Place(Job& job, Block& block);
  // The stages of a step that goes by the block's shares.
  void PushShares(Job& job, Operation& operation, Block& block, TimeNs now);
  void Push(Job& job, Operation& operation, Block& block, std::uint32_t part, std::uint8_t lane,
            TimeNs now);
  void Start(Job& job, Operation& operation, Block& block, Part& part, TimeNs now);
  static void NoteBegin(Job& job, const Operation& operation, TimeNs now);
  void Compare(const Job& job, const Block& block, const transport::Completion& completion,
               Ended& ended);
  void Settle(Job& job, const Operation& operation, const Block& block, Part& part,
              const transport::Completion& completion, TimeNs now);
  // Takes the stage's time into the lane's cost line.
  void Learn(LaneState& lane, double bytes, const transport::Completion& completion, TimeNs now);
  void Unqueue(Job& job, Operation& operation, Block& block, Part& part, TimeNs now);
  static Job& JobOf(Jobs& jobs, JobId id);
  void ExplainHeads(Jobs& jobs, std::uint8_t lane, TimeNs now);
  void ExplainHead(Job& job, const schedule::UnifiedQueue::HeadWaits& head);
  static void SetBusy(LaneState& lane, TimeNs busy_ns);
  void ShowLane(std::uint8_t lane);

  std::vector<LaneState> lanes_;
  std::uint8_t in_node_ = 0;
  std::optional<std::uint8_t> on_gpus_;
  std::size_t first_rail_ = 0;  // the number of lanes where there is none
  schedule::UnifiedQueue queue_;
  TimeNs next_time_ = kNever;
  TimeNs flushed_ns_ = 0;
  bool shares_unsent_ = false;  // of some jobs: Job::share_unsent
  BoardWriter& board_;
  Recorder& recorder_;
  Outgoing<MappingMessage>& mapping_;
};

}  // namespace headrace::service
