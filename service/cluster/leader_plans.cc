#include "service/cluster/leader_plans.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "service/plan/canonical.h"

namespace headrace::service {

void LeaderPlans::Begin(Job& job) {
  HR_CHECK(job.planning == nullptr && job.phase == Phase::kMeasuring, job.name);
  JobShape shape{.nodes = {}, .servers_count = job.agreement.servers_count, .agreed = {}};
  for (std::size_t node = 0; node + shape.servers_count < job.agreement.nodes.size(); ++node) {
    const AgreedNode& agreed = job.agreement.nodes[node];
    shape.nodes.push_back({.name = agreed.name, .ranks = agreed.ranks});
  }
  shape.agreed = job.agreement.costs;
  shape.halves = job.agreement.takes_halves();
  if (!job.goes_on) requested_codecs_.Forget(job.name, job.uid);
  job.planning = std::make_unique<Planning>(
      Planning::Options{.job = job.name,
                        .policy = jobs_.options().policy,
                        .token = jobs_.NumberOf(job),
                        .shape = std::move(shape),
                        .requested_codec = requested_codecs_.Find(job.name, job.uid)});
}

void LeaderPlans::Handle(Job& job, Participant& participant, const ReportLayout& layout) {
  if (job.planning == nullptr || participant.server || layout.layout == nullptr) return;
  job.planning->OnLayout(participant.place, layout.layout, layout.policy);
  Advance(job);
}

void LeaderPlans::Handle(Job& job, Participant& participant, const ReportTimesSeen& times) {
  if (job.planning == nullptr || participant.server) return;
  job.planning->OnTimesSeen(participant.place, times.seen);
  Advance(job);
}

void LeaderPlans::Handle(Job& job, Participant& participant, const RequestPolicy& request) {
  if (job.planning == nullptr || participant.server) return;
  job.planning->SetPolicy(request.policy);
  Advance(job);
}

void LeaderPlans::SetCodec(Job& job, const CodecChoice& choice) {
  if (job.planning == nullptr) return;
  requested_codecs_.Keep(job.name, job.uid, choice);
  job.planning->SetCodec(choice);
  Advance(job);
}

void LeaderPlans::Handle(Job& job, Participant& participant, const ReportPlanAck& ack) {
  if (job.planning == nullptr || participant.server) return;
  job.planning->OnPlanAck(participant.place, ack.version, ack.hash, ack.iteration);
  Advance(job);
}

void LeaderPlans::Handle(const PlanMade& message) {
  const auto found = jobs_.all().find(message.token);
  if (found == jobs_.all().end() || found->second.planning == nullptr) return;
  found->second.planning->OnPlanMade(message.plan);
  Advance(found->second);
}

void LeaderPlans::Advance(Job& job) {
  const std::vector<PlanningStep> steps = job.planning->DrainSteps();
  for (const PlanningStep& step : steps) {
    // The job is gone after it.
    HR_CHECK(!std::holds_alternative<PlanFailure>(step) || &step == &steps.back(), job.name);
    std::visit([this, &job](const auto& each) { Execute(job, each); }, step);
  }
}

void LeaderPlans::Execute(Job& job, const PlanFailure& failure) {
  jobs_.FailJob(job, failure.code, failure.cause);
}

void LeaderPlans::Execute(Job& /*job*/, const MakePlan& make) { jobs_.Report({make}); }

void LeaderPlans::Execute(Job& job, const PlanOffer& offer) {
  const std::vector<PlanPiece> pieces = CutPlan(offer.plan->version, plan::Canonical(*offer.plan));
  for (const Participant& participant : job.participants) {
    if (participant.server) continue;
    for (PlanPiece piece : pieces) {
      piece.job = participant.number;
      jobs_.Send(participant, std::move(piece));
    }
  }
}

void LeaderPlans::Execute(Job& job, const PlanSwitch& change) {
  for (const Participant& participant : job.participants) {
    if (participant.server) continue;
    jobs_.Send(participant, AnnouncePlanSwitch{.job = participant.number,
                                               .version = change.version,
                                               .from_iteration = change.from_iteration,
                                               .before_s = change.before_s,
                                               .iterations_before = change.iterations_before});
  }
}

void LeaderPlans::Execute(Job& job, const PlanNote& note) {
  HR_CHECK(!job.participants.empty(), job.name);
  const JobId id = jobs_.options().in_process ? JobId{job.participants.front().number} : JobId{};
  jobs_.Report({Event{.code = note.code, .job = id, .text = note.text, .uid = job.uid}});
}

}  // namespace headrace::service
