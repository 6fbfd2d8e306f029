// The blocks of all jobs: made from ready operations in order, passed through the unified queue and
// over one lane after the other, until all stages of each have ended.
//
// Owned and called by the flow, on dispatch's thread. It reports by return values: the flow decides
// what the end of an operation means for ranks and jobs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "service/actor/outgoing.h"
#include "service/actor/request.h"
#include "service/dispatch/blocks/scratch_requests.h"
#include "service/dispatch/blocks/wait_reasons.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/lanes/lanes.h"
#include "service/dispatch/messages.h"
#include "service/dispatch/observe/recorder.h"
#include "service/lane/messages.h"
#include "service/mapping/messages.h"
#include "service/schedule/queue.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class Blocks {
 public:
  // All outlive it.
  Blocks(Lanes& lanes, BoardWriter& board, Recorder& recorder, WaitReasons& wait_reasons,
         Outgoing<RpcMessage>& rpc, Outgoing<MappingMessage>& mapping);

  void AddJob(const Job& job, TimeNs now) {
    queue_.AddJob(job.id(), {});
    lanes_.AddJob(job, now);
  }
  void RemoveJob(Job& job);
  // Applies InForce::share from now on. It is sent to lanes between nodes, once the job's links are
  // open.
  void SetShare(Job& job, TimeNs now);

  // The operation, or block of the job's plan, is ready: its blocks follow those of earlier ones.
  void Begin(Job& job, Operation& operation, TimeNs now);
  // Allows the send to make more of its blocks than before.
  void Extend(Job& job, Operation& operation, std::uint64_t blocks_allowed, TimeNs now);
  bool HasRoom(const Job& job) const { return job.has_free_blocks(); }
  // How many blocks of the job's plan may be on one lane from now on.
  void SetPlannedInFlightMax(JobId job, std::uint64_t blocks_max) {
    queue_.SetPlannedInFlightMax(job, blocks_max);
  }

  // Memory that the job's blocks lack: whoever has it booked and made; and it has been made.
  ScratchRequests& scratch() { return scratch_; }
  void AddScratch(Job& job, struct ScratchMade made, TimeNs now);

  // Handles the end of a stage that a lane reports. Returns its operation, and what went wrong.
  struct Ended {
    Operation& operation;
    std::optional<Failure> failure;
    std::optional<BlockHash> hash;  // of what all ranks of this node have got
  };
  Ended StageEnded(Job& job, const transport::Completion& completion, TimeNs now);

  // The operation has failed: removes its waiting stages from the queue and cancels those on lanes.
  // It has moved() when no lane has a stage of it any more.
  void Abandon(Job& job, Operation& operation, TimeNs now);

  // A receive of another node's send is on its lane; it may have ended meanwhile.
  void OnReceivePosted(Job& job, const ReceivePosted& message);

  // Hands waiting stages to lanes that have credit.
  void Schedule(Jobs& jobs, TimeNs now);
  // When a stage that only a job's limit holds back may go; kNever if there is none.
  TimeNs next_time() const { return next_time_; }

 private:
  void Free(Job& job, Block& block);

  // The size of the operation's blocks; 0: it is one block.
  std::uint64_t BlockBytes(const Job& job, const Operation& operation, TimeNs now) const;
  void MakeMore(Job& job, const Operation& operation);
  // Makes blocks of ready operations while there is room for them.
  void Make(Job& job, TimeNs now);
  void MakeOf(Job& job, schedule::TrafficClass traffic_class, TimeNs now);
  // Whether the operation of that number is ready, has not failed, and has blocks left to make.
  static bool HasBlocksToMake(Job& job, std::uint64_t sequence);
  static void DropEnded(Job& job, boost::circular_buffer<std::uint64_t>& making);
  bool MakeNext(Job& job, Operation& operation, TimeNs now);
  static std::uint64_t CountBlocks(const Job& job, const Operation& operation);
  // Fills in what the next block of the operation is.
  static void Cut(const Job& job, Operation& operation, Block& block);
  // Puts the block's next stage, from `stage` on, into the queue, or ends the block.
  void Enter(Job& job, Operation& operation, Block& block, BlockStage stage, TimeNs now);
  void Cross(Job& job, schedule::TrafficClass traffic_class, TimeNs now);
  void HoldBack(Job& job, Operation& operation, const Block& block, TimeNs now);
  // Gives the block its place in the order of those that go to other nodes.
  void Place(Job& job, Block& block);
  // Queues a stage that goes over several lanes, each of which has a share of it.
  void PushShares(Job& job, Operation& operation, Block& block, TimeNs now);
  void Push(Job& job, Operation& operation, Block& block, std::uint32_t part, std::uint8_t lane,
            TimeNs now);
  void Start(Job& job, Operation& operation, Block& block, BlockPart& part, TimeNs now);
  static void NoteBegin(Job& job, const Operation& operation, TimeNs now);
  void Compare(const Job& job, const Block& block, const transport::Completion& completion,
               Ended& ended);
  static bool CameEarly(Job& job, const Block& block);
  void Settle(Job& job, Operation& operation, const Block& block, BlockPart& part,
              const transport::Completion& completion, TimeNs now);
  void Unqueue(Job& job, Operation& operation, Block& block, BlockPart& part, TimeNs now);
  static Job& JobOf(Jobs& jobs, JobId id);
  void ExplainHeads(Jobs& jobs, std::uint8_t lane, TimeNs now);

  Lanes& lanes_;
  schedule::UnifiedQueue queue_;
  TimeNs next_time_ = kNever;
  BoardWriter& board_;
  Recorder& recorder_;
  WaitReasons& wait_reasons_;
  Outgoing<MappingMessage>& mapping_;
  ScratchRequests scratch_;
};

}  // namespace headrace::service
