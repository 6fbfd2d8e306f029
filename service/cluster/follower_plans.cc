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

void Follower::OnLayoutSet(JobId id, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                           std::optional<plan::Policy> policy) {
  Job* job = Find(id);
  if (job == nullptr) return;
  job->layouts.Add(rank, std::move(layout), policy);
  SendLayoutIfComplete(*job);
}

// One layout and one policy stand for all ranks here. The leader can take them once it has started
// the job.
void Follower::SendLayoutIfComplete(Job& job) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten || job.layout_sent) return;
  if (job.layouts.ranks_count() < job.ranks.size()) return;
  job.layout_sent = true;
  SendToLeader(
      job, ReportLayout{
               .job = job.number, .layout = job.layouts.layout(), .policy = job.layouts.policy()});
}

void Follower::Handle(const TimesSeen& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage != Stage::kRunning) return;
  SendToLeader(*job, ReportTimesSeen{.job = job->number,
                                     .seen = {.times = message.times, .costs = message.costs}});
}

// An honest leader that is another release ends the job on every node; a false one may do nothing.
void Follower::OnProtocolError(Job& job, const std::string& what) {
  const std::string cause = fmt::format("the leader at {} {}", job.leader, what);
  SendToLeader(job, ReportJobFailed{.job = job.number, .code = Code::kCorrupt, .cause = cause});
  Fail(job, Code::kCorrupt, cause);
}

void Follower::Handle(Job& job, const PlanPiece& piece) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (!job.layout_sent) return OnProtocolError(job, "sent a plan for no layout");
  if (!job.offered_acked)
    return OnProtocolError(job, "sent a plan before it had the answer to the last one");
  const Result<std::shared_ptr<const plan::Plan>> plan =
      job.reassembly.Add(piece, *job.layouts.layout());
  if (!plan) return OnProtocolError(job, "sent a plan that is none: " + plan.error().text());
  if (*plan == nullptr) return;
  job.offered = *plan;
  job.offered_acked = false;
  // Of what this node is about to use, not of what it was sent.
  job.offered_hash = plan::HashOf(*job.offered);
  SendToDispatch({PlanOffer{.job = job.id, .plan = job.offered, .hash = job.offered_hash}});
}

void Follower::Handle(const PlanAck& message) {
  Job* job = Find(message.job);
  if (job == nullptr || job->stage != Stage::kRunning || job->offered == nullptr) return;
  if (job->offered->version != message.version) return;
  job->offered_acked = true;
  SendToLeader(*job, ReportPlanAck{.job = job->number,
                                   .version = message.version,
                                   .hash = job->offered_hash,
                                   .iteration = message.iteration});
}

void Follower::Handle(Job& job, const AnnouncePlanSwitch& change) {
  if (job.stage != Stage::kRunning || job.id == JobId{} || job.forgotten) return;
  if (job.offered == nullptr || job.offered->version != change.version || !job.offered_acked) {
    return OnProtocolError(
        job, fmt::format("switched to plan {}, which is not held here", change.version));
  }
  const PlanSwitch sent{.job = job.id,
                        .version = change.version,
                        .from_iteration = change.from_iteration,
                        .before_s = change.before_s};
  SendToDispatch({sent});
  actions_.emplace_back(ToWatch{Event{
      .code = Code::kOk, .job = job.id, .text = DescribeSwitch(job.name, *job.offered, sent)}});
}

}  // namespace headrace::service
