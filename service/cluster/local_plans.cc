#include "service/cluster/local_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "service/cluster/names.h"

namespace headrace::service {
namespace {

// The only node.
constexpr std::size_t kHere = 0;

}  // namespace

LocalPlans::Job* LocalPlans::Find(JobId id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

void LocalPlans::RankAttached(const SessionIdentity& identity) {
  auto found = jobs_.find(identity.job);
  if (found == jobs_.end()) {
    std::vector<std::uint32_t> ranks(identity.world_size);
    std::iota(ranks.begin(), ranks.end(), 0U);
    JobShape shape{.nodes = {{.name = options_.node_name, .ranks = std::move(ranks)}},
                   .servers_count = 0,
                   .agreed = {}};
    found = jobs_
                .emplace(identity.job,
                         Job{.name = identity.job_name,
                             .uid = identity.uid,
                             .world_size = identity.world_size,
                             .came = {},
                             .layouts = {},
                             .planning = Planning({.job = identity.job_name,
                                                   .policy = options_.policy,
                                                   .token = kLocalPlanToken | identity.job.value,
                                                   .shape = std::move(shape)}),
                             .offered = nullptr})
                .first;
    forming_.Begin(identity.job.value,
                   identity.attached_ns +
                       std::max<TimeNs>(options_.forming_ns, identity.timeout_ms * kMillisecond));
  }
  Job& job = found->second;
  ++job.attached;
  job.came.insert(identity.rank);
  if (job.came.size() == job.world_size) forming_.End(identity.job.value);
}

void LocalPlans::Expire(TimeNs now) {
  for (const std::uint32_t number : forming_.TakeOverdue(now)) {
    Job* job = Find(JobId{number});
    if (job == nullptr) continue;
    job->planning.Stop();
    std::vector<std::uint32_t> missing;
    for (std::uint32_t rank = 0; rank < job->world_size; ++rank) {
      if (!job->came.contains(rank)) missing.push_back(rank);
    }
    const std::string waits = fmt::format("{} of {} ranks have attached: {}", job->came.size(),
                                          job->world_size, MissingRanks(missing));
    actions_.emplace_back(ToDispatch{JobFailed{
        .job = JobId{number}, .code = Code::kTimeout, .cause = DescribeOverdue(job->name, waits)}});
  }
}

void LocalPlans::RankEnded(const SessionIdentity& identity) {
  Job* job = Find(identity.job);
  if (job == nullptr) return;
  job->planning.Stop();
  if (--job->attached > 0) return;
  forming_.End(identity.job.value);
  jobs_.erase(identity.job);
}

Status LocalPlans::CheckLayout(JobId id, std::uint32_t rank, const Layout& layout,
                               std::optional<plan::Policy> policy) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? Status() : found->second.layouts.Check(rank, layout, policy);
}

void LocalPlans::LayoutSet(JobId id, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                           std::optional<plan::Policy> policy) {
  Job* job = Find(id);
  if (job == nullptr) return;
  job->layouts.Add(rank, std::move(layout), policy);
  if (job->layouts.ranks_count() < job->world_size) return;
  job->planning.TakeLayout(kHere, job->layouts.layout(), job->layouts.policy());
  GoOn(id, *job);
}

std::vector<KnownJob> LocalPlans::FindJobs(std::string_view name) const {
  std::vector<KnownJob> found;
  for (const auto& [id, job] : jobs_) {
    if (job.name == name) found.push_back({.id = id, .uid = job.uid});
  }
  return found;
}

std::optional<KnownJob> LocalPlans::FindJob(std::string_view name) const {
  const std::vector<KnownJob> found = FindJobs(name);
  return found.empty() ? std::nullopt : std::optional(found.back());
}

void LocalPlans::Want(JobId id, plan::Policy policy) {
  Job* job = Find(id);
  if (job == nullptr) return;
  job->planning.Want(policy);
  GoOn(id, *job);
}

void LocalPlans::Take(const PlanTaken& message) {
  Job* job = Find(message.job);
  if (job == nullptr) return;
  job->planning.TakeAnswer(kHere, message.version, job->offered_hash, message.iteration);
  GoOn(message.job, *job);
}

void LocalPlans::Take(const TimesSeen& message) {
  Job* job = Find(message.job);
  if (job == nullptr) return;
  job->planning.TakeTimes(kHere, {.times = message.times, .costs = message.costs});
  GoOn(message.job, *job);
}

void LocalPlans::Take(const PlanMade& message) {
  const JobId id{static_cast<std::uint32_t>(message.token & ~kLocalPlanToken)};
  Job* job = Find(id);
  if (job == nullptr) return;
  job->planning.Take(message.plan);
  GoOn(id, *job);
}

void LocalPlans::GoOn(JobId id, Job& job) {
  for (const PlanningStep& step : job.planning.TakeSteps()) {
    std::visit([this, id, &job](const auto& each) { Do(id, job, each); }, step);
  }
}

void LocalPlans::Do(JobId /*id*/, Job& /*job*/, const MakePlan& make) {
  actions_.emplace_back(ToWatch{make});
}

void LocalPlans::Do(JobId id, Job& job, const PlanOffer& offer) {
  job.offered = offer.plan;
  job.offered_hash = offer.hash;
  actions_.emplace_back(ToDispatch{OfferPlan{.job = id, .plan = offer.plan, .hash = offer.hash}});
}

void LocalPlans::Do(JobId id, Job& job, const PlanSwitch& change) {
  actions_.emplace_back(ToDispatch{
      SwitchPlan{.job = id, .version = change.version, .from_iteration = change.from_iteration}});
  actions_.emplace_back(ToWatch{
      Event{.code = Code::kOk, .job = id, .text = DescribeSwitch(job.name, *job.offered, change)}});
}

void LocalPlans::Do(JobId id, Job& /*job*/, const PlanFailure& failure) {
  actions_.emplace_back(
      ToDispatch{JobFailed{.job = id, .code = failure.code, .cause = failure.cause}});
}

void LocalPlans::Do(JobId id, Job& /*job*/, const PlanNote& note) {
  actions_.emplace_back(ToWatch{Event{.code = note.code, .job = id, .text = note.text}});
}

}  // namespace headrace::service
