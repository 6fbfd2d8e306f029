#include "service/cluster/follower_plans.h"

#include <fmt/format.h>

#include <algorithm>

#include "ipc/base/check.h"
#include "ipc/base/collective_text.h"
#include "service/cluster/planning.h"
#include "service/cluster/planning_inputs.h"
#include "service/plan/canonical.h"

namespace headrace::service {
namespace {

// What one service can do and several cannot.
Status CheckBetweenNodes(const Layout& layout) {
  if (layout.reduction != Reduction::kAverage) return {};
  const auto whole = std::ranges::find_if(
      layout.tensors, [](const LayoutTensor& tensor) { return !IsFloating(tensor.dtype); });
  if (whole == layout.tensors.end()) return {};
  return Error(
      Code::kInvalidArgument,
      fmt::format("gradient {} \"{}\" is of {}: averages of integers are not carried out between "
                  "nodes, where their sums would not fit: ask for sums and divide them",
                  whole - layout.tensors.begin(), whole->name, Name(whole->dtype)));
}

}  // namespace

Status FollowerPlans::CheckLayout(JobId id, std::uint32_t rank, const Layout& layout,
                                  std::optional<plan::Policy> policy) const {
  const auto found = jobs_.all().find(id.value);
  if (found == jobs_.all().end() || found->second.id != id) return {};
  if (!FollowedJobs::IsLedHere(found->second)) {
    if (Status status = CheckBetweenNodes(layout); !status) return status;
  }
  return found->second.layouts.Check(rank, layout, policy);
}

void FollowerPlans::OnLayoutSet(JobId id, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                                std::optional<plan::Policy> policy) {
  Job* job = jobs_.Find(id);
  if (job == nullptr) return;
  HR_CHECK(job->ranks.contains(rank), job->name, rank);
  job->layouts.Add(rank, std::move(layout), policy);
  SendLayoutIfComplete(*job);
}

// One layout and one policy stand for all ranks here. The leader can take them once it has started
// the job.
void FollowerPlans::SendLayoutIfComplete(Job& job) {
  if (job.phase != Phase::kRunning || job.id == JobId{} || job.forgotten || job.layout_sent) return;
  if (job.layouts.ranks_count() < job.ranks.size()) return;
  HR_CHECK(job.layouts.layout() != nullptr, job.name, job.ranks.size());
  job.layout_sent = true;
  jobs_.SendToLeader(
      job, ReportLayout{
               .job = job.number, .layout = job.layouts.layout(), .policy = job.layouts.policy()});
}

void FollowerPlans::Handle(const TimesSeen& message) {
  Job* job = jobs_.Find(message.job);
  if (job == nullptr || job->phase != Phase::kRunning) return;
  // They are made of what clients say. A leader ends the whole connection for times that are none,
  // and with it the jobs of others.
  if (!AreRecorded(message.times) || !std::ranges::all_of(message.costs, IsCost)) return;
  if (!std::ranges::all_of(message.codecs, IsCodecCost)) return;
  jobs_.SendToLeader(*job, ReportTimesSeen{.job = job->number,
                                           .seen = {.times = message.times,
                                                    .costs = message.costs,
                                                    .codecs = message.codecs,
                                                    .rails_changed = message.rails_changed}});
}

void FollowerPlans::Handle(Job& job, const PlanPiece& piece) {
  if (job.phase != Phase::kRunning || job.id == JobId{} || job.forgotten) return;
  if (!job.layout_sent) return jobs_.OnProtocolError(job, "sent a plan for no layout");
  if (!job.offered_acked)
    return jobs_.OnProtocolError(job, "sent a plan before it had the answer to the last one");
  const Result<std::shared_ptr<const plan::Plan>> plan =
      job.reassembly.Add(piece, *job.layouts.layout(), job.agreement.takes_halves());
  if (!plan) return jobs_.OnProtocolError(job, "sent an invalid plan: " + plan.error().text());
  if (*plan == nullptr) return;
  job.offered = *plan;
  job.offered_acked = false;
  // The hash is that of what this node is about to use, not of what it was sent.
  job.offered_hash = plan::HashOf(*job.offered);
  jobs_.SendToDispatch({PlanOffer{.job = job.id, .plan = job.offered, .hash = job.offered_hash}});
}

void FollowerPlans::Handle(const PlanAck& message) {
  Job* job = jobs_.Find(message.job);
  if (job == nullptr || job->phase != Phase::kRunning || job->offered == nullptr) return;
  if (job->offered->version != message.version) return;
  HR_CHECK(!job->offered_acked, job->name, message.version);
  job->offered_acked = true;
  jobs_.SendToLeader(*job, ReportPlanAck{.job = job->number,
                                         .version = message.version,
                                         .hash = job->offered_hash,
                                         .iteration = message.iteration});
}

void FollowerPlans::Handle(Job& job, const AnnouncePlanSwitch& change) {
  if (job.phase != Phase::kRunning || job.id == JobId{} || job.forgotten) return;
  if (job.offered == nullptr || job.offered->version != change.version || !job.offered_acked) {
    return jobs_.OnProtocolError(
        job, fmt::format("switched to plan {}, which is not held here", change.version));
  }
  const PlanSwitch sent{.job = job.id,
                        .version = change.version,
                        .from_iteration = change.from_iteration,
                        .before_s = change.before_s,
                        .iterations_before = change.iterations_before};
  jobs_.SendToDispatch({sent});
  HR_CHECK(job.layouts.layout() != nullptr, job.name);
  jobs_.Add(ToWatch{Event{
      .code = Code::kOk,
      .job = job.id,
      .text = DescribeSwitch(job.name, *job.offered, job.layouts.layout()->tensors.size(), sent),
      .uid = job.uid}});
}

}  // namespace headrace::service
