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
void Leader::Handle(Job& job, Part& part, const ReportLayout& layout) {
  if (job.planning == nullptr || part.server || layout.layout == nullptr) return;
  job.planning->OnLayout(part.place, layout.layout, layout.policy);
  AdvancePlanning(job);
}

void Leader::Handle(Job& job, Part& part, const ReportTimesSeen& times) {
  if (job.planning == nullptr || part.server) return;
  job.planning->OnTimesSeen(part.place, times.seen);
  AdvancePlanning(job);
}

void Leader::Handle(Job& job, Part& part, const RequestPolicy& request) {
  if (job.planning == nullptr || part.server) return;
  job.planning->SetPolicy(request.policy);
  AdvancePlanning(job);
}

void Leader::Handle(Job& job, Part& part, const ReportPlanAck& ack) {
  if (job.planning == nullptr || part.server) return;
  job.planning->OnPlanAck(part.place, ack.version, ack.hash, ack.iteration);
  AdvancePlanning(job);
}

void Leader::Handle(const PlanMade& message) {
  const auto found = jobs_.find(message.token);
  if (found == jobs_.end() || found->second.planning == nullptr) return;
  found->second.planning->OnPlanMade(message.plan);
  AdvancePlanning(found->second);
}

void Leader::AdvancePlanning(Job& job) {
  for (const PlanningStep& step : job.planning->TakeSteps()) {
    if (const auto* failure = std::get_if<PlanFailure>(&step)) {
      return Fail(job, failure->code, failure->cause);
    }
    std::visit(
        [this, &job](const auto& each) {
          if constexpr (requires { Execute(job, each); }) Execute(job, each);
        },
        step);
  }
}

void Leader::Execute(Job& /*job*/, const MakePlan& make) { outgoing_.push_back({make}); }

void Leader::Execute(Job& job, const PlanOffer& offer) {
  const std::vector<PlanPiece> pieces = CutPlan(offer.plan->version, plan::Canonical(*offer.plan));
  for (const Part& part : job.parts) {
    if (part.server) continue;
    for (PlanPiece piece : pieces) {
      piece.job = part.number;
      Send(part, std::move(piece));
    }
  }
}

void Leader::Execute(Job& job, const PlanSwitch& change) {
  for (const Part& part : job.parts) {
    if (part.server) continue;
    Send(part, AnnouncePlanSwitch{.job = part.number,
                                  .version = change.version,
                                  .from_iteration = change.from_iteration,
                                  .before_s = change.before_s});
  }
}

void Leader::Execute(Job& job, const PlanNote& note) {
  const JobId id = options_.in_process ? JobId{job.parts.front().number} : JobId{};
  outgoing_.push_back({Event{.code = note.code, .job = id, .text = note.text}});
}

}  // namespace headrace::service
