// The way of an operation through the service: opened by the first post, ready with the last one,
// through the unified queue, over a lane, ended on every rank exactly once.
//
// Owned and called by dispatch, on its thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "service/actor/messages.h"
#include "service/dispatch/job.h"
#include "service/schedule/queue.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

// A lane as dispatch sees it.
struct LanePort {
  std::string name;
  std::string transport;
  std::uint32_t threads = 1;
  std::uint64_t credit_bytes = 0;
  Door<LaneMessage>* door = nullptr;  // outlives dispatch
};

using Jobs = std::vector<std::unique_ptr<Job>>;

class Flow {
 public:
  Flow(std::vector<LanePort> lanes, BoardWriter& board, Door<WatchMessage>& watch);

  void AddJob(JobId job) { queue_.AddJob(job, {}); }
  void RemoveJob(JobId job) { queue_.RemoveJob(job); }

  // A record that was read from the ring of `rank`.
  void Post(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now);
  // A lane reports the end of a stage.
  void StageEnded(Job& job, const transport::Completion& completion, TimeNs now);
  // Hands waiting stages to lanes that have credit.
  void Schedule(Jobs& jobs, TimeNs now);
  // Ends operations past their deadline; afterwards next_deadline() is exact.
  void Expire(Jobs& jobs, TimeNs now);
  // Not later than the earliest deadline of an open operation; kNever when nothing is open.
  TimeNs next_deadline() const { return next_deadline_; }

  // Ends the job's open operations for which `which` holds.
  enum class Which : std::uint8_t { kAll, kNotPostedBy };
  void FailOpen(Job& job, Which which, std::uint32_t rank, const Failure& failure, TimeNs now);

  // A rank has attached: shows what its job's operations wait for now.
  void ShowAttached(Job& job);

  // From now on no new operation is accepted.
  void RefuseNew() { refusing_ = true; }

  // The slot that a stage's token names.
  static JobId JobOf(std::uint64_t token) { return JobId{static_cast<std::uint32_t>(token >> 16)}; }

  // Says it to people, but not more than a few times a job: a client that does everything wrong
  // must not fill the log.
  void Tell(Job& job, Code code, std::string text);

 private:
  struct LaneState {
    LanePort port;
    ipc::LaneRow row{};
    TimeNs busy_since = 0;
    bool queue_changed = false;  // the board shows an older state of its queue
  };

  void Open(Job& job, Operation& operation, std::uint32_t rank, std::uint64_t sequence, TimeNs now);
  // What the rank learns whose slot is still in use by an operation a whole ring before.
  Failure TooFarAhead(Job& job, const Operation& earlier) const;
  void Join(Job& job, Operation& operation, std::uint32_t rank, const Posted& posted, TimeNs now);
  void MakeReady(Job& job, Operation& operation, TimeNs now);
  void Start(Job& job, Operation& operation, TimeNs now);
  // Takes a waiting stage out of the queue; what waited behind it waits for what it waited for.
  void Unqueue(Job& job, Operation& operation);
  void Fail(Job& job, Operation& operation, Failure failure, TimeNs now);
  void End(Job& job, Operation& operation);
  // Writes the completion word of one rank.
  void TellRank(Job& job, std::uint32_t rank, std::uint64_t sequence, const Failure* failure);
  void ExplainHeads(Jobs& jobs, std::uint8_t lane);
  void SetReason(Job& job, Operation& operation, ipc::WaitReason reason, std::uint64_t argument);
  void ShowGathering(Job& job, Operation& operation);
  void ShowLane(std::uint8_t lane);
  static std::uint64_t Token(const Job& job, std::uint64_t sequence);

  std::vector<LaneState> lanes_;
  schedule::UnifiedQueue queue_;
  BoardWriter& board_;
  Door<WatchMessage>& watch_;
  TimeNs next_deadline_ = kNever;
  bool refusing_ = false;
};

}  // namespace headrace::service
