// The one path of all work through the service. An operation, and a block of a job's plan, is a
// work item (operation.h):
//
//   post       a rank's memory is ready                         intake.h
//   ready      every local rank's is, and its turn has come     Flow::MakeReady, Plans::Advance
//   cut        into blocks                                      blocks.h
//   stage      of each block, on a lane                         blocks.h, Flow::StageEnded
//   complete,
//   fail or
//   expire     once on every rank that posted                   Flow::End
//
// The differences: an operation is identified by its number and fails alone; so does a pair, a send
// with its receive, which is identified by its two ranks and tag; a block's gradients are posted in
// any order, and a failure of one ends them all.
//
// Owned and called by dispatch, on its thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "service/actor/outgoing.h"
#include "service/actor/request.h"
#include "service/cluster/allowance.h"
#include "service/dispatch/blocks/blocks.h"
#include "service/dispatch/blocks/plans.h"
#include "service/dispatch/blocks/settings.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/job/uid_use.h"
#include "service/dispatch/messages.h"
#include "service/dispatch/observe/events.h"
#include "service/dispatch/observe/recorder.h"
#include "service/mapping/messages.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/watch/board_writer.h"
#include "service/watch/messages.h"

namespace headrace::service {

// The number of operations that time out in a second and name the ranks that wait for each other.
inline constexpr int kChainsMax = 4;

class Flow {
 public:
  Flow(std::vector<LanePort> lanes, BoardWriter& board, Outgoing<PeersMessage>& peers,
       Outgoing<RpcMessage>& rpc, Outgoing<WatchMessage>& watch, Outgoing<MappingMessage>& mapping);

  void AddJob(Job& job, TimeNs now);
  void RemoveJob(Job& job, TimeNs now);

  // The flow's parts, for the code above it.
  Lanes& lanes() { return lanes_; }
  WaitReasons& wait_reasons() { return wait_reasons_; }
  Blocks& blocks() { return blocks_; }
  Recorder& recorder() { return recorder_; }
  JobEvents& events() { return events_; }
  SettingChanges& settings() { return settings_; }
  Plans& plans() { return plans_; }

  // For jobs with all ranks on this node: results are compared every so many iterations and
  // operations; 0: never. For other jobs their leader decides.
  void Verify(std::uint32_t every) { verify_ = every; }

  void SetLayout(Job& job, Session& session, const struct SetLayout& message, TimeNs now);
  void AcceptSwitch(Job& job, const PlanSwitch& message, TimeNs now);
  // Scratch memory for transfers to other nodes was pinned, or could not be.
  void ScratchBooked(Job* job, const struct ScratchBooked& message, TimeNs now);
  void ScratchMade(Job& job, struct ScratchMade message, TimeNs now);
  // The job's nodes have met: operations that only waited for that are ready.
  void Form(Job& job, JobNodes nodes, TimeNs now);
  // The lane's messages to another node of the job have moved to another rail: that is reported,
  // and the lane's costs are learned anew. Null: the job is gone.
  void OnMoved(Job* job, const LaneMoved& message);

  // ---- ready ----
  // A send to a rank of another node: reports it there, and ends it if its message goes along.
  void Announce(Job& job, Operation& operation, TimeNs now);
  // Begins the operation and those that were ready and waited for it, or shows which rank it waits
  // for.
  void Begin(Job& job, Operation& operation, TimeNs now);
  // Begins the operations and blocks that were held back for the whole job, if they can begin.
  void BeginHeldBack(Job& job, TimeNs now);

  // ---- stages ----
  // A lane reports the end of a stage.
  void StageEnded(Job& job, const transport::Completion& completion, TimeNs now);

  // ---- ends ----
  // The completion word of one record of a rank; null failure: it ended well.
  // `source`: of a receive that ended well, the rank that sent.
  void CompleteRecord(Job& job, std::uint32_t rank, std::uint64_t record, const Failure* failure,
                      std::uint8_t source = 0);
  // Every work item ends here: the ranks that posted it get their completions, it is counted and
  // recorded, and its place is freed.
  void End(Job& job, Operation& operation, TimeNs now);

  // Fails the work item; if it is a plan's block, all gradients; and if other nodes take part in
  // it, the job.
  void FailOperation(Job& job, Operation& operation, Failure failure, TimeNs now);
  // Fails the operation and nothing else, on the ranks of this node.
  void FailOperationHere(Job& job, Operation& operation, Failure failure, TimeNs now);
  // As FailOperation, for all gradients of a job: they cannot go on.
  void FailGradients(Job& job, const Failure& failure, TimeNs now);
  // Fails every open gradient, and every later one, on this node. Their ranks get completions as
  // soon as no lane writes to them any more. The first cause stays.
  void FailGradientsHere(Job& job, const Failure& failure, TimeNs now);
  // The job cannot go on: ends everything that is open and refuses what comes. The first cause
  // stays. A failure that was found here is sent to peers, which send it to the other nodes.
  enum class Found : std::uint8_t { kHere, kElsewhere };
  void FailJob(Job& job, Failure failure, Found found, TimeNs now);
  // The links to other nodes have failed. If no better cause fails the job soon, this one does.
  void LinksFailed(Job& job, Failure failure, TimeNs now);
  // Ends the sends and receives that cannot end well without a post of a rank that has left.
  void FailPairsOf(Job& job, std::uint32_t rank, const Failure& failure, TimeNs now);
  // Ends the job's open operations for which `which` holds.
  enum class Which : std::uint8_t { kAll, kNotPostedBy };
  void FailOpenOperations(Job& job, Which which, std::uint32_t rank, const Failure& failure,
                          TimeNs now);
  // Takes the work item from its lanes and ends it, without an event: more of them may follow.
  void Withdraw(Job& job, Operation& operation, const Failure& failure, TimeNs now);
  // Ends open work beyond the drain's limits, and nothing else.
  void RefuseBeyond(Job& job, const DrainState& drain, const Failure& failure, TimeNs now);
  // A rank has left after operation `last` and iteration `last_iteration`: later ones cannot be
  // carried out.
  void LimitTo(Job& job, std::uint64_t last, std::uint64_t last_iteration, const std::string& cause,
               TimeNs now);
  // The same of a job on this node alone, where operations that the rank has posted go on.
  void LimitGradients(Job& job, std::uint64_t last_iteration, const Failure& failure, TimeNs now);

  // ---- deadlines ----
  // Something is open until then.
  void AddDeadline(TimeNs deadline_ns) { next_deadline_ = std::min(next_deadline_, deadline_ns); }
  // Ends work that is past its deadline, and releases jobs that were held until now; afterwards
  // next_deadline() is exact.
  void Expire(Jobs& jobs, TimeNs now);
  // Not later than the earliest deadline of open work, the end of a hold, or the time when a job's
  // limit allows a stage; kNever if there is none.
  TimeNs next_deadline() const {
    return std::min({next_deadline_, plans_.next_release(), blocks_.next_time()});
  }
  // Moves the deadlines of all open work by that much.
  void Postpone(Jobs& jobs, TimeNs by_ns);
  // Resumes the job's deadlines, which stood still for that long.
  void ResumeDeadlines(Job& job, TimeNs frozen_ns, TimeNs now);

  static JobId JobOf(std::uint64_t token) { return StageToken::Unpack(token).job; }

 private:
  // How long another node may hold bytes of a send or receive that has ended early; longer than a
  // slow link needs for what is on it.
  static constexpr TimeNs kLetGoMax = 60 * kSecond;
  // Links also fail because another node closes them, whose cause is on its way by the leader.
  static constexpr TimeNs kBetterCauseWait = 500 * kMillisecond;

  // Whether every local rank has posted the operation and nothing else holds it back.
  static bool IsReady(const Job& job, const Operation& operation) {
    if (!job.formed() || operation.posts.ready() != job.WantedOf(operation.posts)) return false;
    if (!operation.paired()) {
      return job.steering.MayBegin(operation.spec.sequence) && !job.WaitsForEarlier(operation) &&
             !job.WaitsForIteration(operation.spec);
    }
    const Pair& pair = job.pairs().at(operation.spec.sequence);
    // The send's blocks that may go have begun on the receiver's node.
    return pair.MayBegin() && (pair.away == Away::kGoes || !job.steering.paused());
  }
  void MakeReady(Job& job, Operation& operation, TimeNs now);
  static bool IsLeftAsItIs(const Job& job, const Operation& operation);
  // Whether the pair's message came with its announcement: then it is received, and has ended.
  bool ReceiveData(Job& job, Operation& operation, TimeNs now);
  // Whether the operation cannot end well without a post of that rank.
  static bool NeedsPostOf(const Job& job, const Operation& operation, std::uint32_t rank);
  // The pair has ended; it stays as a tombstone if its other side must learn the cause.
  static void ClosePair(Job& job, Pair& pair);
  // Writes the completions of the ranks that have posted the operation.
  void CompleteOperation(Job& job, Operation& operation);
  // Writes the completions of the gradients that end with the plan's block; returns whether its
  // iteration has ended with it.
  bool CompleteBlock(Job& job, const Operation& operation, TimeNs now);
  void CompleteGradient(Job& job, std::uint32_t tensor, const Failure* failure);
  void CompleteFailedGradients(Job& job);
  void PostponeJob(Job& job, TimeNs by_ns);
  void ExpireSent(Job& job, TimeNs now);
  void ExpireGradients(Job& job, TimeNs now);
  // Whether it is a pair with a side on another node.
  static bool IsAway(Job& job, const Operation& operation);
  // Whether ranks that are there still post gradients of an iteration that a rank which has left
  // never will; `last` is that rank's last iteration.
  static bool IsBeyond(const Job& job, std::uint64_t last);
  UidUse& FindUse(std::uint32_t uid);

  BoardWriter& board_;
  Recorder recorder_;
  WaitReasons wait_reasons_;
  JobEvents events_;
  Lanes lanes_;
  Blocks blocks_;
  SettingChanges settings_;
  Plans plans_;
  Outgoing<PeersMessage>& peers_;
  std::vector<std::unique_ptr<UidUse>> uses_;  // jobs point into them
  std::uint32_t verify_ = 0;
  TimeNs next_deadline_ = kNever;
  Allowance chains_{kChainsMax, kSecond};
};

}  // namespace headrace::service
