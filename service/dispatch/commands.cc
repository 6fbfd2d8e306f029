#include "service/dispatch/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace headrace::service {
namespace {

using Kind = Steering::Kind;

}  // namespace

void JobCommands::Steer(Job& job, const Steering& steering, TimeNs now) {
  if (job.failed) return;
  switch (steering.kind) {
    case Kind::kPause:
      if (job.in_force.paused) return;
      // From now on, since other nodes may be at their border already: what they have not
      // begun must not time out here.
      if (job.steering.frozen_since_ns == 0) job.steering.frozen_since_ns = now;
      return settings_.Request(job, steering, now);
    case Kind::kResume:
      return Resume(job, steering, now);
    case Kind::kDrain:
      return DrainJob(job, steering, now);
    case Kind::kDrainOperations:
    case Kind::kDrainIterations:
      return OnNodeDrains(job, steering, now);
    case Kind::kCancel:
      return flow_.FailJob(job, {Code::kCancelled, "cancelled by " + AskedBy(steering)},
                           Flow::Found::kHere, now);
    case Kind::kWeight:
    case Kind::kPriority:
    case Kind::kLimit:
    case Kind::kSends:
      return settings_.Request(job, steering, now);
    case Kind::kEvict:
      return Evict(job, steering.value, "was evicted by " + AskedBy(steering));
    case Kind::kSlowBound:
    case Kind::kOwnShare:
    case Kind::kSlowRank:
    case Kind::kRankState:
      return OnSlow(job, steering, now);
    case Kind::kApplicants:
      job.steering.applicants = WaitingApplicants::Of(steering.value);
      return job.Changed();
    case Kind::kCompress:  // it comes with a plan
      return;
  }
}

void JobCommands::OnSlow(Job& job, const Steering& steering, TimeNs now) {
  std::optional<SlowRanks::Eviction> eviction = slow_ranks_.Handle(job, steering, now);
  if (eviction) Evict(job, eviction->rank, std::move(eviction->cause));
}

void JobCommands::Evict(Job& job, std::uint64_t rank, std::string cause) {
  if (rank >= job.world_size() || job.IsGone(static_cast<std::uint32_t>(rank))) return;
  job.steering.evicted |= std::uint64_t{1} << rank;
  job.Changed();
  const JobRank& entry = job.rank_entry(static_cast<std::uint32_t>(rank));
  if (entry.session == nullptr) return;  // it is another node's
  // Once in a session's life, or as often as a person may ask.
  rpc_.Send(SessionBroken{.session = entry.session->identity().id,
                          .error = Error(Code::kPeerLost, std::move(cause)),
                          .evicted = true});
}

void JobCommands::Resume(Job& job, const Steering& steering, TimeNs now) {
  SteeringState& notes = job.steering;
  notes.waiting[static_cast<std::size_t>(Kind::kPause)].reset();
  if (notes.frozen_since_ns == 0) return;
  const TimeNs frozen_ns = now - std::exchange(notes.frozen_since_ns, 0);
  flow_.ResumeDeadlines(job, frozen_ns, now);
  job.in_force.paused = false;
  notes.paused_after = UINT64_MAX;
  job.Changed();
  flow_.events().AnnounceSteering(job, steering,
                                  fmt::format("resumed after a pause of {} ms, asked by {}",
                                              frozen_ns / kMillisecond, AskedBy(steering)));
  flow_.BeginHeldBack(job, now);
}

void JobCommands::DrainJob(Job& job, const Steering& steering, TimeNs now) {
  if (job.in_force.draining) return;
  job.in_force.draining = true;
  job.Changed();
  DrainState& drain = job.steering.drain;
  drain.asked = steering;
  if (!job.formed()) {
    return flow_.FailJob(job,
                         {CodeOfEnd(steering),
                          fmt::format("drained by {} before its nodes had met", AskedBy(steering))},
                         Flow::Found::kHere, now);
  }
  drain.operations = SettingChanges::NextOperation(job) - 1;
  drain.iterations = job.gradients ? job.gradients->LastIteration() : 0;
  if (job.nodes() == nullptr) return EndDraining(job, now);
  for (const auto& [kind, value] :
       {std::pair(Steering::Kind::kDrainOperations, drain.operations),
        std::pair(Steering::Kind::kDrainIterations, drain.iterations)}) {
    // Twice in a job's life.
    peers_.Send(
        SteerJob{job.id(), {.kind = kind, .value = value, .uid = steering.uid, .node = {}}});
  }
}

void JobCommands::OnNodeDrains(Job& job, const Steering& steering, TimeNs now) {
  DrainState& drain = job.steering.drain;
  // Its leader announces the drain itself before.
  if (!job.in_force.draining || drain.agreed || job.nodes() == nullptr) return;
  const JobNodes& nodes = *job.nodes();
  std::size_t node = nodes.self;
  if (!steering.node.empty()) {
    const auto found = std::ranges::find(nodes.nodes, steering.node, &JobNode::name);
    node = static_cast<std::size_t>(found - nodes.nodes.begin());
  }
  const std::size_t count = nodes.data_nodes_count();
  if (node >= count) return;
  if (steering.kind == Steering::Kind::kDrainOperations) {
    drain.furthest_operation = std::max(drain.furthest_operation, steering.value);
    drain.operations_from |= std::uint64_t{1} << node;
  } else {
    drain.furthest_iteration = std::max(drain.furthest_iteration, steering.value);
    drain.iterations_from |= std::uint64_t{1} << node;
  }
  const std::uint64_t all = ~std::uint64_t{0} >> (64 - count);
  if (drain.operations_from != all || drain.iterations_from != all) return;
  // Not less than what this node has said: that may have begun here.
  drain.operations = std::max(drain.operations, drain.furthest_operation);
  drain.iterations = std::max(drain.iterations, drain.furthest_iteration);
  EndDraining(job, now);
}

void JobCommands::EndDraining(Job& job, TimeNs now) {
  DrainState& drain = job.steering.drain;
  drain.agreed = true;
  const Failure failure = DrainedFailure(job);
  flow_.events().AnnounceSteering(job, drain.asked, fmt::format("will be {}", failure.text));
  flow_.RefuseBeyond(job, drain, failure, now);
  flow_.BeginHeldBack(job, now);
  FinishJobDrain(job, now);
}

void JobCommands::EndAll(const Jobs& jobs, TimeNs now) {
  const Failure failure{Code::kUnavailable, "the service shut down before it could be done"};
  for (const std::unique_ptr<Job>& job : jobs) {
    if (job->spans_nodes() && job->HoldsUp()) {
      flow_.FailJob(*job, failure, Flow::Found::kHere, now);
    }
    flow_.FailOpenOperations(*job, Flow::Which::kAll, 0, failure, now);
    flow_.FailGradientsHere(*job, failure, now);
  }
}

void JobCommands::FinishJobDrain(Job& job, TimeNs now) {
  DrainState& drain = job.steering.drain;
  if (!drain.agreed || drain.done || job.failed || job.open.operations > 0) return;
  if (job.pairs().sent() > 0) return;
  for (const std::uint32_t rank : job.local()) {
    if (job.rank_entry(rank).operations < drain.operations) return;
  }
  if (job.gradients && job.gradients->IterationsEnded() < drain.iterations) return;
  drain.done = true;
  const Failure failure = DrainedFailure(job);
  if (!job.spans_nodes()) return flow_.FailJob(job, failure, Flow::Found::kHere, now);
  // What has ended here may still move on other nodes: the leader ends the job when all say so.
  peers_.Send(JobFailed{job.id(), failure.code, failure.text});
}

}  // namespace headrace::service
