// Carries out what users request of a job: a pause, its end, a drain, a cancel, a change of a
// setting. Changes that wait for the border of an iteration are kept and take effect there
// (settings.h).
//
// A drain: the job ends, with a named cause, once all that is posted has ended. On one node that is
// what any rank has posted so far. Several nodes are not equally far, and all must end what one has
// begun. So each reports how far its ranks have posted, and begins nothing beyond that; when all
// have reported, the furthest of them is the end for all. These reports take the path of users'
// requests, through the job's leader to every node, so all nodes receive the same. Later posts are
// refused one by one, so that nothing under way ends with them.
//
// Owned and called by dispatch, on its thread.
#pragma once

#include <cstdint>
#include <string>

#include "service/actor/outgoing.h"
#include "service/dispatch/blocks/flow.h"
#include "service/dispatch/blocks/settings.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/messages.h"
#include "service/dispatch/slow_ranks.h"
#include "service/rpc/messages.h"

namespace headrace::service {

class JobCommands {
 public:
  // All outlive it.
  JobCommands(Flow& flow, BoardWriter& board, Outgoing<PeersMessage>& peers,
              Outgoing<RpcMessage>& rpc)
      : flow_(flow),
        settings_(flow.settings()),
        slow_ranks_(peers, flow.events(), board),
        peers_(peers),
        rpc_(rpc) {}

  void Steer(Job& job, const Steering& steering, TimeNs now);

  // After a record of the rank, which is attached.
  void OnRecord(Job& job, std::uint32_t rank, TimeNs now) {
    slow_ranks_.OnRecord(job, rank, now);
    FinishDrain(job, now);
  }
  // For ranks that do nothing, at next_check() or later. Returns whether that was due.
  bool CheckRanks(const Jobs& jobs, TimeNs now) { return slow_ranks_.Check(jobs, now); }
  TimeNs next_check() const { return slow_ranks_.next_check(); }
  // After a post and after an end: ends the job, if it is drained and everything up to the limits
  // has ended.
  void FinishDrain(Job& job, TimeNs now) {
    if (job.in_force.draining) FinishJobDrain(job, now);
  }
  // The service shuts down, and waits no longer for what is open.
  void EndAll(const Jobs& jobs, TimeNs now);
  // After whatever may have ended in any of them.
  void FinishDrains(const Jobs& jobs, TimeNs now) {
    for (const auto& job : jobs) FinishDrain(*job, now);
  }

 private:
  // Rpc ends the lease as if the process were gone; all else follows from the lease's end, here and
  // on the other nodes. Each node counts it, whose rank it may be.
  void Evict(Job& job, std::uint64_t rank, std::string cause);
  void OnSlow(Job& job, const Steering& steering, TimeNs now);
  void Resume(Job& job, const Steering& steering, TimeNs now);
  void DrainJob(Job& job, const Steering& steering, TimeNs now);
  // A node of the job has said how far it is.
  void OnNodeDrains(Job& job, const Steering& steering, TimeNs now);
  // What comes after the drain's limits, which all nodes know now, is refused.
  void EndDraining(Job& job, TimeNs now);
  void FinishJobDrain(Job& job, TimeNs now);

  Flow& flow_;
  SettingChanges& settings_;
  SlowRanks slow_ranks_;
  Outgoing<PeersMessage>& peers_;
  Outgoing<RpcMessage>& rpc_;
};

}  // namespace headrace::service
