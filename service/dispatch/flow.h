// The way of an operation through the service: opened by the first post, ready with the last one,
// moved in blocks (blocks.h), ended on every rank exactly once.
//
// Owned and called by dispatch, on its thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "service/actor/messages.h"
#include "service/actor/outgoing.h"
#include "service/dispatch/blocks.h"
#include "service/dispatch/job.h"
#include "service/dispatch/late.h"
#include "service/dispatch/plan_flow.h"
#include "service/dispatch/recorder.h"
#include "service/dispatch/steering.h"
#include "service/dispatch/uid_use.h"
#include "service/watch/board_writer.h"

namespace headrace::service {

class Flow {
 public:
  Flow(std::vector<LanePort> lanes, BoardWriter& board, Outgoing<PeersMessage>& peers,
       Outgoing<WatchMessage>& watch, Outgoing<MappingMessage>& mapping);

  void AddJob(Job& job, TimeNs now) {
    blocks_.AddJob(job, now);
    recorder_.OpenJob(job, now);
    job.use = &FindUse(job.owner_uid());
    job.verify = verify_;
    ++job.use->jobs;
  }
  void RemoveJob(Job& job, TimeNs now) {
    steersman_.TellLostSettings(job);
    plans_.RemoveJob(job);
    recorder_.CloseJob(job, now);
    blocks_.RemoveJob(job);
    awaited_ -= job.awaited;
    --job.use->jobs;
    std::erase_if(uses_, [](const auto& use) { return use->jobs == 0; });
  }

  // ---- of jobs whose gradients move by a plan ----
  void SetLayout(Job& job, Session& session, const struct SetLayout& message, TimeNs now);
  void OfferPlan(Job& job, const struct OfferPlan& message, TimeNs now);
  void SwitchPlan(Job& job, const struct SwitchPlan& message, TimeNs now);

  // Holds the first block of the job's next iteration, or, with a hold of no length, lets it go.
  void SetHold(Job& job, const Hold& hold, TimeNs now) { plans_.SetHold(job, hold, now); }

  Late& late() { return late_; }
  const Late& late() const { return late_; }
  const Blocks& blocks() const { return blocks_; }

  // Posts that one uid may have open at a time; 0: any number.
  void LimitPosts(std::uint64_t per_uid) { posts_per_uid_ = per_uid; }

  // Of jobs whose ranks are all here: of every so many iterations and operations what the ranks
  // get is compared; 0: of none. Of others their leader decides.
  void Verify(std::uint32_t every) { verify_ = every; }

  // A person steers the job.
  void Steer(Job& job, const Steering& steering, TimeNs now);
  // A lane says whom one of the job's stages waits for; the stage may have ended meanwhile.
  void StageWaits(Job& job, const struct StageWaits& message, TimeNs now);

  // A record that was read from the ring of `rank`.
  void Post(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now);
  // Looks at the ready words that records await; what they say is ready counts as posted now.
  // Returns whether there was any.
  bool TakeReady(Jobs& jobs, TimeNs now);
  // When to look at them again: no GPU wakes anybody. kNever while none is awaited.
  TimeNs next_look_at_words() const { return awaited_ == 0 ? kNever : looked_ns_ + kWordsEvery; }
  // Memory for what goes to other nodes was pinned, or could not be.
  void ScratchMade(Job& job, struct ScratchMade message, TimeNs now);

  // A lane reports the end of a stage.
  void StageEnded(Job& job, const transport::Completion& completion, TimeNs now);
  // Hands waiting stages to lanes that have credit.
  void Schedule(Jobs& jobs, TimeNs now) { blocks_.Schedule(jobs, now); }
  void TakeLaneFacts(const LaneFacts& facts) { blocks_.TakeLaneFacts(facts); }
  void TakeFlow(std::uint8_t lane, TimeNs flowed_ns) { blocks_.TakeFlow(lane, flowed_ns); }
  // The job's nodes have met: operations that only waited for that are ready.
  void Form(Job& job, JobNodes nodes, TimeNs now);
  // The job cannot go on: ends everything that is open and refuses what comes. The first cause
  // stays. A failure that was found here is told to peers, for the other nodes to hear of it.
  enum class Found : std::uint8_t { kHere, kElsewhere };
  void FailJob(Job& job, Failure failure, Found found, TimeNs now);
  // A rank has left after operation `last` and iteration `last_iteration`: later ones cannot be
  // carried out.
  void LimitTo(Job& job, std::uint64_t last, std::uint64_t last_iteration, const std::string& cause,
               TimeNs now);
  // The same of a job on this node alone, where operations that the rank has posted go on.
  void FailGradientsOf(Job& job, const Failure& failure, TimeNs now) {
    plans_.Fail(job, failure, now);
  }
  void LimitGradients(Job& job, std::uint64_t last_iteration, const Failure& failure, TimeNs now);
  // Deadlines of everything open move by that much, and waits so far are not late.
  void Postpone(Jobs& jobs, TimeNs by_ns, TimeNs now);
  // Ends operations past their deadline; afterwards next_deadline() is exact.
  void Expire(Jobs& jobs, TimeNs now);
  // Not later than the earliest deadline of an open operation, the end of a hold, or when a job's
  // limit lets a stage go; kNever when there is none.
  TimeNs next_deadline() const {
    return std::min({next_deadline_, plans_.next_release(), blocks_.next_time()});
  }
  std::uint64_t ProbeLanes(RequestToken token) { return blocks_.ProbeLanes(token); }
  // Once a turn: what lanes had no room for. Returns whether anything was sent.
  bool Flush(Jobs& jobs, TimeNs now) { return blocks_.Flush(jobs, now); }
  TimeNs NextFlush() const { return blocks_.NextFlush(); }

  // Ends the job's open operations for which `which` holds.
  enum class Which : std::uint8_t { kAll, kNotPostedBy };
  void FailOpen(Job& job, Which which, std::uint32_t rank, const Failure& failure, TimeNs now);

  // Who is attached has changed: shows what the job's operations wait for now.
  void ShowGatheringAgain(Job& job);

  // From now on no new operation is accepted.
  void RefuseNew() { refusing_ = true; }

  // What the board shows of the job's lanes and of what is recorded.
  void Publish(Job& job) { recorder_.Publish(job); }

  static JobId JobOf(std::uint64_t token) { return StageName::Unpack(token).job; }

  // Says it to people, but not more than a few times a job: a client that does everything wrong
  // must not fill the log.
  void Tell(Job& job, Code code, std::string text);

 private:
  // While anything is awaited and nothing else happens. The turns in between look as well.
  static constexpr TimeNs kWordsEvery = 30 * kMicrosecond;

  // ---- ready_words.cc ----
  void Await(Job& job, std::uint32_t rank, const ipc::Record& record, std::uint64_t sequence);
  bool TakeReadyOf(Job& job, std::uint32_t rank, TimeNs now);
  // Whether the post is still waited for.
  static bool IsAwaited(Job& job, std::uint32_t rank, const AwaitedPost& post);
  void MarkReady(Job& job, std::uint32_t rank, const AwaitedPost& post, TimeNs now);

  void PostGradient(Job& job, std::uint32_t rank, const ipc::GradientRecord& record, TimeNs now);
  // What a job's gradients cannot go on with ends them, and, where other nodes take part, the job.
  void FailGradients(Job& job, const Failure& failure, TimeNs now);
  void Open(Job& job, Operation& operation, std::uint32_t rank, std::uint64_t sequence, TimeNs now);
  // What the rank learns whose slot is still in use by an operation a whole ring before.
  Failure TooFarAhead(Job& job, const Operation& earlier) const;
  void Join(Job& job, Operation& operation, std::uint32_t rank, const Posted& posted,
            const ipc::Record& record, TimeNs now);
  // Notes that the operation uses the rank's memory from now on. Returns false when another open
  // post uses it: the operation has failed then.
  bool UseMemory(Job& job, Operation& operation, std::uint32_t rank, const Posted& posted,
                 TimeNs now);
  void PostOperation(Job& job, std::uint32_t rank, const ipc::Record& record, TimeNs now);
  // Whether every local rank has posted the operation and nothing else holds it back.
  static bool IsReady(const Job& job, const Operation& operation) {
    return job.formed() && operation.ready() == job.local_ranks() &&
           job.steering.MayBegin(operation.shape.sequence);
  }
  void MakeReady(Job& job, Operation& operation, TimeNs now);
  // What was held back for the whole job begins, if it can.
  void BeginHeldBack(Job& job, TimeNs now);
  void PostponeJob(Job& job, TimeNs by_ns);
  void Resume(Job& job, const Steering& steering, TimeNs now);
  // ---- drain.cc ----
  void DrainJob(Job& job, const Steering& steering, TimeNs now);
  // A node of the job has said how far it is.
  void TakePromise(Job& job, const Steering& steering, TimeNs now);
  // What comes after the drain's limits, which all nodes know now, is refused.
  void EndDraining(Job& job, TimeNs now);
  // Ends the job, if it is drained and everything up to the limits has ended.
  void FinishJobDrain(Job& job, TimeNs now);
  // Ends an operation without a word: more of them may follow.
  void Refuse(Job& job, Operation& operation, Failure failure, TimeNs now);
  // Why the owner of the job may not have another post open.
  std::optional<Failure> OverQuota(const Job& job) const;
  UidUse& FindUse(std::uint32_t uid);
  // Ends the operation, or, where other nodes take part in it, the job.
  void Fail(Job& job, Operation& operation, Failure failure, TimeNs now);
  void FailAlone(Job& job, Operation& operation, Failure failure, TimeNs now);
  void End(Job& job, Operation& operation, TimeNs now);
  Failure Expired(Job& job, const Operation& operation, TimeNs now) const;
  void ShowGathering(Job& job, Operation& operation);

  BoardWriter& board_;
  Recorder recorder_;
  Blocks blocks_;
  Steersman steersman_;
  PlanFlow plans_;
  Late late_;
  Outgoing<PeersMessage>& peers_;
  Outgoing<WatchMessage>& watch_;
  std::vector<std::unique_ptr<UidUse>> uses_;  // jobs point into them
  std::uint64_t posts_per_uid_ = 0;
  std::uint32_t verify_ = 0;
  std::uint64_t awaited_ = 0;  // of all jobs
  TimeNs looked_ns_ = 0;       // at ready words
  TimeNs next_deadline_ = kNever;
  bool refusing_ = false;
};

}  // namespace headrace::service
