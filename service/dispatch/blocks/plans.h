// A job's plan on this node: offered, agreed, in force from one iteration on; and the head, which
// is the block of it that begins next.
//
// Owned and called by the flow, on dispatch's thread. Failures of the job are return values: the
// flow decides what ends with them.
#pragma once

#include <cstdint>
#include <optional>

#include "service/actor/outgoing.h"
#include "service/dispatch/blocks/blocks.h"
#include "service/dispatch/blocks/settings.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/messages.h"
#include "service/dispatch/observe/events.h"
#include "service/dispatch/observe/plan_rows.h"
#include "service/dispatch/observe/recorder.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class Plans {
 public:
  Plans(Lanes& lanes, Blocks& blocks, BoardWriter& board, Recorder& recorder,
        SettingChanges& settings, JobEvents& events, Outgoing<PeersMessage>& peers,
        Outgoing<RpcMessage>& rpc)
      : rows_(board),
        lanes_(lanes),
        blocks_(blocks),
        recorder_(recorder),
        settings_(settings),
        events_(events),
        peers_(peers),
        rpc_(rpc) {}

  // A rank has handed in its layout. The job's ranks have been compared by whoever offers a plan.
  [[nodiscard]] std::optional<Failure> SetLayout(Job& job, Session& session,
                                                 const struct SetLayout& message);
  void Offer(Job& job, const PlanOffer& message, TimeNs now);
  // All nodes have agreed from which iteration on the offered plan holds.
  [[nodiscard]] std::optional<Failure> AcceptSwitch(Job& job, const PlanSwitch& message,
                                                    TimeNs now);

  // Begins the blocks that can begin, and switches to the next plan where it is due.
  void Advance(Job& job, TimeNs now);
  // What a lane sends for the job takes another rail: when some iterations have shown what that
  // costs, the leader is to make the plan anew.
  void OnMoved(Job& job, std::uint8_t lane);
  // Every block of the iteration has ended.
  void EndIteration(Job& job, std::uint64_t iteration);

  // Keeps the first block of the next iteration from beginning; see Hold. One of no length lets it
  // go.
  void SetHold(Job& job, const Hold& hold, TimeNs now);
  // Lets go what was held until now. Not later than next_release() there is something to let go.
  void Release(const Jobs& jobs, TimeNs now);
  TimeNs next_release() const { return next_release_; }

  // What people see of it.
  PlanRows& rows() { return rows_; }

 private:
  void OnSwitched(Job& job);
  // How many iterations the leader gets a report of, now that this one has ended; 0: none.
  static std::uint64_t ReportDue(Job& job, std::uint64_t iteration);
  // Finds memory for what encodings leave out: where a rank has kept it, for the first plan of all,
  // since its sums get that back; else for the first plan that encodes.
  std::optional<Failure> MakeResiduals(Job& job, const plan::Plan& plan);
  // Whether the head may not begin whatever its gradients say.
  bool IsHeldBack(Job& job, TimeNs now);
  void Begin(Job& job, Operation& operation, TimeNs now);

  PlanRows rows_;
  Lanes& lanes_;
  Blocks& blocks_;
  Recorder& recorder_;
  SettingChanges& settings_;
  JobEvents& events_;
  Outgoing<PeersMessage>& peers_;
  Outgoing<RpcMessage>& rpc_;
  TimeNs next_release_ = kNever;
};

}  // namespace headrace::service
