// The plans of the jobs that a service leads: what nodes say for them, and what they are told.
#include <algorithm>

#include "service/cluster/leader.h"
#include "service/plan/canonical.h"

namespace headrace::service {

void Leader::BeginPlanning(Job& job) {
  JobShape shape{.nodes = {}, .servers_count = job.agreement.servers_count, .agreed = {}};
  for (std::size_t node = 0; node + shape.servers_count < job.agreement.nodes.size(); ++node) {
    const AgreedNode& agreed = job.agreement.nodes[node];
    shape.nodes.push_back({.name = agreed.name, .ranks = agreed.ranks});
  }
  shape.agreed = job.agreement.costs;
  job.planning = std::make_unique<Planning>(Planning::Options{.job = job.name,
                                                              .policy = options_.policy,
                                                              .token = NumberOf(job),
                                                              .shape = std::move(shape)});
}

// A server has no part in it, and before the job starts there is nothing to plan for: then the
// message is none of an honest node.
void Leader::Take(Job& job, Part& part, const ReportLayout& handed) {
  if (job.planning == nullptr || part.server || handed.layout == nullptr) return;
  job.planning->TakeLayout(part.place, handed.layout, handed.policy);
  GoOnPlanning(job);
}

void Leader::Take(Job& job, Part& part, const ReportTimesSeen& told) {
  if (job.planning == nullptr || part.server) return;
  job.planning->TakeTimes(part.place, told.seen);
  GoOnPlanning(job);
}

void Leader::Take(Job& job, Part& part, const RequestPolicy& wish) {
  if (job.planning == nullptr || part.server) return;
  job.planning->Want(wish.policy);
  GoOnPlanning(job);
}

void Leader::Take(Job& job, Part& part, const ReportPlanAck& held) {
  if (job.planning == nullptr || part.server) return;
  job.planning->TakeAnswer(part.place, held.version, held.hash, held.iteration);
  GoOnPlanning(job);
}

void Leader::Take(const PlanMade& message) {
  const auto found = jobs_.find(message.token);
  if (found == jobs_.end() || found->second.planning == nullptr) return;
  found->second.planning->Take(message.plan);
  GoOnPlanning(found->second);
}

void Leader::GoOnPlanning(Job& job) {
  for (const PlanningStep& step : job.planning->TakeSteps()) {
    if (const auto* failure = std::get_if<PlanFailure>(&step)) {
      return Fail(job, failure->code, failure->cause);
    }
    std::visit(
        [this, &job](const auto& each) {
          if constexpr (requires { Do(job, each); }) Do(job, each);
        },
        step);
  }
}

void Leader::Do(Job& /*job*/, const MakePlan& make) { errands_.push_back({make}); }

void Leader::Do(Job& job, const PlanOffer& offer) {
  const std::vector<PlanPiece> pieces = CutPlan(offer.plan->version, plan::Canonical(*offer.plan));
  for (const Part& part : job.parts) {
    if (part.server) continue;
    for (PlanPiece piece : pieces) {
      piece.job = part.number;
      Send(part, std::move(piece));
    }
  }
}

void Leader::Do(Job& job, const PlanSwitch& change) {
  for (const Part& part : job.parts) {
    if (part.server) continue;
    Send(part, AnnouncePlanSwitch{.job = part.number,
                                  .version = change.version,
                                  .from_iteration = change.from_iteration,
                                  .before_s = change.before_s});
  }
}

void Leader::Do(Job& job, const PlanNote& note) {
  const JobId id = options_.in_process ? JobId{job.parts.front().number} : JobId{};
  errands_.push_back({Event{.code = note.code, .job = id, .text = note.text}});
}

}  // namespace headrace::service
