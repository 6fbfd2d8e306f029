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
#include "service/mapping/messages.h"
#include "service/peers/messages.h"
#include "service/rpc/messages.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class Plans {
 public:
  Plans(Lanes& lanes, Blocks& blocks, BoardWriter& board, Recorder& recorder,
        SettingChanges& settings, JobEvents& events, Outgoing<PeersMessage>& peers,
        Outgoing<RpcMessage>& rpc, Outgoing<MappingMessage>& mapping)
      : rows_(board),
        lanes_(lanes),
        blocks_(blocks),
        recorder_(recorder),
        settings_(settings),
        events_(events),
        peers_(peers),
        rpc_(rpc),
        mapping_(mapping) {}

  // A rank has handed in its layout. The leader compares the layouts before it offers a plan.
  [[nodiscard]] std::optional<Failure> SetLayout(Job& job, Session& session,
                                                 const struct SetLayout& message);
  void Offer(Job& job, const PlanOffer& message, TimeNs now);
  // All nodes have agreed from which iteration on the offered plan holds.
  [[nodiscard]] std::optional<Failure> AcceptSwitch(Job& job, const PlanSwitch& message,
                                                    TimeNs now);

  // Begins the blocks that can begin, and switches to the next plan where it is due.
  void Advance(Job& job, TimeNs now);
  // The lane's messages for the job have moved to another rail. When some iterations have shown the
  // new costs, the leader makes the plan anew.
  void OnMoved(Job& job, std::uint8_t lane);
  // GPUs reach what is left out of the job's gradients, or never will.
  void ResidualsPinned(Job& job, struct ResidualsPinned message);
  // Every block of the iteration has ended.
  void EndIteration(Job& job, std::uint64_t iteration);

  // Keeps the first block of the next iteration from beginning; see Hold. A hold of no length
  // releases it.
  void SetHold(Job& job, const Hold& hold, TimeNs now);
  // Releases jobs that were held until now. To be called at next_release().
  void Release(const Jobs& jobs, TimeNs now);
  TimeNs next_release() const { return next_release_; }

  // What people see of it.
  PlanRows& rows() { return rows_; }

 private:
  void OnSwitched(Job& job);
  // The number of iterations that are reported to the leader now that this one has ended; 0: none.
  static std::uint64_t ReportDue(Job& job, std::uint64_t iteration);
  static std::size_t RunsMaxOf(const Job& job);
  void AnnounceServersResiduals(Job& job, const plan::Plan& plan);
  // Finds memory for residuals. If a rank has kept residuals, with the first plan, since its sums
  // get them back; otherwise with the first plan that encodes.
  std::optional<Failure> MakeResiduals(Job& job, const plan::Plan& plan);
  // Has residuals pinned where GPUs are to encode gradients of the plan; meanwhile the host does.
  void PinResiduals(Job& job, const plan::Plan& plan);
  // Finds memory for the factors of the plan's matrices.
  std::optional<Failure> MakeFactors(Job& job, const plan::Plan& plan);
  // Frees that of matrices whose factors have another rank by now.
  void FreeFactors(Job& job);
  // Books memory of the job's own.
  void Book(Job& job, std::uint64_t bytes);
  // Whether the head must not begin even if its gradients are ready.
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
  Outgoing<MappingMessage>& mapping_;
  TimeNs next_release_ = kNever;
};

}  // namespace headrace::service
