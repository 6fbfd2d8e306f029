// What operations wait for, as people read it in the queue's rows.
//
// Owned by the flow, on dispatch's thread. It writes an operation's reason, and nothing else of it.
#pragma once

#include <cstdint>

#include "service/dispatch/job/job.h"
#include "service/dispatch/messages.h"
#include "service/dispatch/observe/recorder.h"
#include "service/schedule/queue.h"

namespace headrace::service {

class WaitReasons {
 public:
  // It outlives this.
  explicit WaitReasons(Recorder& recorder) : recorder_(recorder) {}

  void Set(Job& job, Operation& operation, ipc::WaitReason reason, std::uint64_t argument);
  // The operation waits for its ranks, or to become ready.
  void ShowGathering(Job& job, Operation& operation);
  // For all operations that gather: who is attached, or their order, has changed.
  void ShowGatheringAgain(Job& job);
  // The job's stage stands first in a lane's queue, and does not go.
  void ExplainHead(Job& job, const schedule::UnifiedQueue::HeadWaits& head);
  // A lane says whom one of the job's stages waits for; the stage may have ended meanwhile.
  void OnStageWaits(Job& job, const StageWaits& message);

 private:
  void ShowWaitingPair(Job& job, Operation& operation);

  Recorder& recorder_;
};

}  // namespace headrace::service
