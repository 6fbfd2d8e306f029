// The way of gradients through the service: posted by every rank in any order, carried in the
// blocks of the job's plan, ended on every rank. And the way of plans: offered, agreed, in force
// from one iteration on.
//
// Owned and called by the flow, on dispatch's thread. What ends the job is the flow's business: it
// is told by the answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/records.h"
#include "service/actor/messages.h"
#include "service/actor/outgoing.h"
#include "service/dispatch/blocks.h"
#include "service/dispatch/job.h"
#include "service/dispatch/recorder.h"
#include "service/dispatch/steering.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class PlanFlow {
 public:
  PlanFlow(Blocks& blocks, BoardWriter& board, Recorder& recorder, Steersman& steersman,
           Outgoing<PeersMessage>& peers)
      : blocks_(blocks), board_(board), recorder_(recorder), steersman_(steersman), peers_(peers) {}

  // What the job cannot go on with, if there is something.
  using Trouble = std::optional<Failure>;

  // A rank has handed in its layout. The job's ranks have been compared by whoever offers a plan.
  [[nodiscard]] Trouble SetLayout(Job& job, Session& session, const struct SetLayout& message);
  void Offer(Job& job, const OfferPlan& message, TimeNs now);
  [[nodiscard]] Trouble Switch(Job& job, const SwitchPlan& message, TimeNs now);

  // A rank's gradient. `refusing`: nothing new is accepted any more. Trouble leaves this post to
  // the caller to answer.
  [[nodiscard]] Trouble Post(Job& job, std::uint32_t rank, const ipc::GradientRecord& record,
                             bool refusing, TimeNs now);
  // The rank's GPU has come as far as a gradient that awaited it.
  [[nodiscard]] Trouble MarkReady(Job& job, std::uint32_t rank, ipc::GradientRecord record,
                                  TimeNs now);
  // Begins the blocks that can begin.
  void Advance(Job& job, TimeNs now);
  // Of a job that is drained: ends what was posted of iterations after `last`, none of which has
  // begun.
  void RefuseBeyond(Job& job, std::uint64_t last, const Failure& failure);
  // Keeps the first block of the next iteration from beginning; see Hold.
  void SetHold(Job& job, const Hold& hold, TimeNs now);
  // Lets go what was held until now. Not later than next_release() there is something to let go.
  void Release(const std::vector<std::unique_ptr<Job>>& jobs, TimeNs now);
  TimeNs next_release() const { return next_release_; }
  // A block of the plan has all its steps behind it.
  void End(Job& job, Operation& operation, TimeNs now);

  // Ends every gradient that is open, and every later one. They are told as soon as no lane writes
  // to them any more. The first cause stays.
  void Fail(Job& job, const Failure& failure, TimeNs now);
  // A failed block has left its lanes.
  void EndFailed(Job& job, Operation& operation, TimeNs now);

  // A gradient that is past its deadline; otherwise `next_deadline` becomes no later than theirs.
  Trouble Expire(Job& job, TimeNs now, TimeNs& next_deadline) const;
  // Whether ranks that are there still post gradients of an iteration that a rank which has left
  // never will; `last` is that rank's last iteration.
  static bool IsBeyond(const Job& job, std::uint64_t last);

  // What the block that comes next waits for; for people.
  void ShowHead(Job& job, TimeNs now);
  void RemoveJob(Job& job);

 private:
  // Whether an open operation of the rank uses the gradient's memory.
  Trouble CheckOverlap(Job& job, std::uint32_t rank, std::uint32_t tensor);
  // The rank's memory of the gradient is ready: what there is to note, and to begin.
  void Ready(Job& job, std::uint32_t rank, std::uint32_t tensor, const ipc::GradientRecord& record,
             TimeNs now);
  void TellRanks(Job& job, std::uint32_t tensor, const Failure* failure);
  void TellFailed(Job& job);
  void EndIteration(Job& job, std::uint64_t iteration);
  void ShowPlan(Job& job);
  void ShowBlocks(Job& job, std::uint64_t iteration);
  void TakeBlockRows(Job& job);

  Blocks& blocks_;
  BoardWriter& board_;
  Recorder& recorder_;
  Steersman& steersman_;
  Outgoing<PeersMessage>& peers_;
  TimeNs next_release_ = kNever;
};

// Writes the completion word of one record of a rank.
void TellRank(Job& job, BoardWriter& board, std::uint32_t rank, std::uint64_t record,
              const Failure* failure);

}  // namespace headrace::service
