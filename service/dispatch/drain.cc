// A drain: the job ends, with a named cause, once what is posted has ended.
//
// On one node that is what any rank has posted so far. Several nodes are not equally far, and what
// one has begun all must end. So each says how far its ranks have posted, begins nothing beyond
// that, and when all have said so, the furthest of them is the end for all. What nodes say goes the
// way of people's wishes, through the job's leader to every node, so all hear the same. What comes
// later is refused post by post: whatever is under way must not end with it.
#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "service/dispatch/flow.h"

namespace headrace::service {

Failure DrainedFailure(const Job& job) {
  const DrainNotes& drain = job.steering.drain;
  const std::string after =
      !job.gradients ? fmt::format("operation {}", drain.operations)
      : drain.operations == 0
          ? fmt::format("iteration {}", drain.iterations)
          : fmt::format("operation {} and iteration {}", drain.operations, drain.iterations);
  if (MovesOver(drain.asked)) {
    const std::string& node = drain.asked.node;
    return {
        CodeOfEnd(drain.asked),
        fmt::format("closed after {} to go on later: the service{} is stopping, as uid {} asked",
                    after, node.empty() ? "" : " on node " + node, drain.asked.uid)};
  }
  return {CodeOfEnd(drain.asked),
          fmt::format("drained by {} after {}", AskedBy(drain.asked), after)};
}

void Flow::DrainJob(Job& job, const Steering& steering, TimeNs now) {
  if (job.draining) return;
  job.draining = true;
  job.dirty = true;
  DrainNotes& drain = job.steering.drain;
  drain.asked = steering;
  if (!job.formed()) {
    return FailJob(job,
                   {CodeOfEnd(steering),
                    fmt::format("drained by {} before its nodes had met", AskedBy(steering))},
                   Found::kHere, now);
  }
  drain.operations = Steersman::NextOperation(job) - 1;
  drain.iterations = job.gradients ? job.gradients->LastIteration() : 0;
  if (job.nodes() == nullptr) return EndDraining(job, now);
  for (const auto& [kind, value] :
       {std::pair(Steering::Kind::kDrainOperations, drain.operations),
        std::pair(Steering::Kind::kDrainIterations, drain.iterations)}) {
    // Twice in a job's life.
    peers_.Send(
        SteerNodes{job.id(), {.kind = kind, .value = value, .uid = steering.uid, .node = {}}});
  }
}

void Flow::TakePromise(Job& job, const Steering& steering, TimeNs now) {
  DrainNotes& drain = job.steering.drain;
  // Its leader tells of the drain itself before.
  if (!job.draining || drain.agreed || job.nodes() == nullptr) return;
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
  drain.operations = drain.furthest_operation;
  drain.iterations = drain.furthest_iteration;
  EndDraining(job, now);
}

void Flow::EndDraining(Job& job, TimeNs now) {
  DrainNotes& drain = job.steering.drain;
  drain.agreed = true;
  const Failure failure = DrainedFailure(job);
  steersman_.Tell(job, fmt::format("will be {}", failure.text));
  for (Operation& operation : job.operations()) {
    if (operation.open() && operation.shape.sequence > drain.operations) {
      Refuse(job, operation, failure, now);
    }
  }
  if (job.gradients) plans_.RefuseBeyond(job, drain.iterations, failure);
  BeginHeldBack(job, now);
  FinishJobDrain(job, now);
}

void Flow::FinishJobDrain(Job& job, TimeNs now) {
  DrainNotes& drain = job.steering.drain;
  if (!drain.agreed || drain.done || job.failed || job.operations_open > 0) return;
  for (const std::uint32_t rank : job.local()) {
    if (job.member(rank).operations < drain.operations) return;
  }
  if (job.gradients && job.gradients->IterationsEnded() < drain.iterations) return;
  drain.done = true;
  const Failure failure = DrainedFailure(job);
  if (!job.spans_nodes()) return FailJob(job, failure, Found::kHere, now);
  // What has ended here may still move on other nodes: the leader ends the job when all say so.
  peers_.Send(JobBroken{job.id(), failure.code, failure.text});
}

}  // namespace headrace::service
