// The plans of a node's jobs: what goes to their leaders for them, and what comes back.
#include <fmt/format.h>

#include <algorithm>

#include "service/cluster/follower.h"
#include "service/cluster/planning.h"
#include "service/plan/canonical.h"

namespace headrace::service {

Status Follower::CheckLayout(JobId id, std::uint32_t rank, const Layout& layout,
                             std::optional<plan::Policy> policy) const {
  const auto found = jobs_.find(id.value);
  if (found == jobs_.end() || found->second.id != id) return {};
  return found->second.layouts.Check(rank, layout, policy);
}

void Follower::LayoutSet(JobId id, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                         std::optional<plan::Policy> policy) {
  Job* job = Find(id);
  if (job == nullptr) return;
  job->layouts.Add(rank, std::move(layout), policy);
  HandIfComplete(*job);
}

// One layout and one policy stand for all ranks here. The leader can take them once it has started
// the job.
void Follower::HandIfComplete(Job& job) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten || job.handed) return;
  if (job.layouts.ranks_count() < job.ranks.size()) return;
  job.handed = true;
  Tell(job, ReportLayout{
                .job = job.number, .layout = job.layouts.layout(), .policy = job.layouts.policy()});
}

void Follower::Take(const TimesSeen& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage != Stage::kRunning) return;
  Tell(*job, ReportTimesSeen{.job = job->number,
                             .seen = {.times = message.times, .costs = message.costs}});
}

// An honest leader that is another release ends the job on every node; a false one may do nothing.
void Follower::Doubt(Job& job, const std::string& what) {
  const std::string cause = fmt::format("the leader at {} {}", job.leader, what);
  Tell(job, ReportJobFailed{.job = job.number, .code = Code::kCorrupt, .cause = cause});
  Fail(job, Code::kCorrupt, cause);
}

void Follower::Take(Job& job, const PlanPiece& piece) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (!job.handed) return Doubt(job, "sent a plan for no layout");
  if (!job.offered_held) return Doubt(job, "sent a plan before it had the answer to the last one");
  const Result<std::shared_ptr<const plan::Plan>> plan =
      job.gathering.Take(piece, *job.layouts.layout());
  if (!plan) return Doubt(job, "sent a plan that is none: " + plan.error().text());
  if (*plan == nullptr) return;
  job.offered = *plan;
  job.offered_held = false;
  // Of what this node is about to use, not of what it was sent.
  job.offered_hash = plan::HashOf(*job.offered);
  TellDispatch({PlanOffer{.job = job.id, .plan = job.offered, .hash = job.offered_hash}});
}

void Follower::Take(const PlanAck& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage != Stage::kRunning || job->offered == nullptr) return;
  if (job->offered->version != message.version) return;
  job->offered_held = true;
  Tell(*job, ReportPlanAck{.job = job->number,
                           .version = message.version,
                           .hash = job->offered_hash,
                           .iteration = message.iteration});
}

void Follower::Take(Job& job, const AnnouncePlanSwitch& change) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (job.offered == nullptr || job.offered->version != change.version || !job.offered_held) {
    return Doubt(job, fmt::format("switched to plan {}, which is not held here", change.version));
  }
  const PlanSwitch told{.job = job.id,
                        .version = change.version,
                        .from_iteration = change.from_iteration,
                        .before_s = change.before_s};
  TellDispatch({told});
  actions_.emplace_back(ToWatch{Event{
      .code = Code::kOk, .job = job.id, .text = DescribeSwitch(job.name, *job.offered, told)}});
}

}  // namespace headrace::service
