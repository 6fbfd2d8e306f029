// Scratch memory for the blocks of jobs on GPUs: booked on the user whose job it is for, then made,
// and given back with the job. Rpc does the first, mapping the others; blocks wait meanwhile. That
// of the host is there at once, untouched, and booked when a block needs it first. The same for the
// staging of a job's group on a lane, which is pinned for GPUs that encode into it: the lane's
// transfers wait.
//
// Owned by Blocks, on dispatch's thread.
#pragma once

#include <optional>

#include "service/actor/outgoing.h"
#include "service/dispatch/job/job.h"
#include "service/dispatch/lanes/lanes.h"
#include "service/dispatch/messages.h"
#include "service/mapping/messages.h"
#include "service/rpc/messages.h"
#include "service/schedule/queue.h"

namespace headrace::service {

class ScratchRequests {
 public:
  // All outlive it.
  ScratchRequests(Lanes& lanes, Outgoing<RpcMessage>& rpc, Outgoing<MappingMessage>& mapping)
      : lanes_(lanes), rpc_(rpc), mapping_(mapping) {}

  // Books what the host has had for the job's blocks from the first that needed it on.
  void BookHostScratch(Job& job);
  // Asks for what a block of that class has found missing.
  void Ask(Job& job, schedule::TrafficClass traffic_class);
  // A lane wants staging of the job's pinned, or unpinned; null: the job is over.
  void OnStagingWanted(Job* job, const StagingWanted& message);
  // Has it made or pinned, or says why the job cannot go on; null: the job is over.
  [[nodiscard]] std::optional<Failure> OnBooked(const Job* job, const ScratchBooked& message);
  static void Add(Job& job, ScratchMade made);
  // The job is over. What was booked for it goes with the session that it is booked on.
  void Discard(Job& job);

 private:
  Lanes& lanes_;
  Outgoing<RpcMessage>& rpc_;
  Outgoing<MappingMessage>& mapping_;
};

}  // namespace headrace::service
