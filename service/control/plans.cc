#include "service/control/plans.h"

#include <fmt/format.h>

#include <vector>

namespace headrace::service {
Result<std::optional<plan::Policy>> ReadPolicyName(std::string_view name) {
  if (name.empty()) return std::optional<plan::Policy>();
  if (const std::optional<plan::Policy> policy = plan::PolicyNamed(name)) return policy;
  std::vector<std::string_view> known;
  for (const plan::Policy policy : plan::kPolicies) known.push_back(plan::Name(policy));
  return Error(Code::kInvalidArgument,
               fmt::format("policy \"{}\" is none of {}", Printable(name, kJobNameShownMax),
                           fmt::join(known, ", ")));
}

Plans::Plans(Desk& desk, Peers& peers, Outbox& outbox)
    : desk_(desk),
      peers_(peers),
      outbox_(outbox),
      local_({.node_name = desk.options.peers.node_name, .policy = desk.options.policy}) {}

void Plans::RankAttached(const SessionIdentity& identity) {
  if (identity.rendezvous.empty()) local_.RankAttached(identity);
}

void Plans::RankEnded(const SessionIdentity& identity) {
  if (!identity.rendezvous.empty()) return;
  local_.RankEnded(identity);
  Act();
}

Status Plans::CheckLayout(const SessionIdentity& identity, const Layout& layout,
                          std::optional<plan::Policy> policy) const {
  if (!identity.rendezvous.empty()) {
    return peers_.follower().CheckLayout(identity.job, identity.rank, layout, policy);
  }
  return local_.CheckLayout(identity.job, identity.rank, layout, policy);
}

void Plans::LayoutSet(const SessionIdentity& identity, std::shared_ptr<const Layout> layout,
                      std::optional<plan::Policy> policy) {
  if (!identity.rendezvous.empty()) {
    return peers_.LayoutSet(identity, std::move(layout), policy);
  }
  local_.LayoutSet(identity.job, identity.rank, std::move(layout), policy);
  Act();
}

void Plans::LayoutRefused(const SessionIdentity& identity, const Error& error) {
  if (error.code() != Code::kMismatch) return;
  if (!identity.rendezvous.empty()) {
    return peers_.Take(JobBroken{.job = identity.job, .code = error.code(), .cause = error.text()});
  }
  desk_.leases.FailJob(identity.job, error.code(), error.text());
  outbox_.Send(
      ToDispatch{JobFailed{.job = identity.job, .code = error.code(), .cause = error.text()}});
}

void Plans::Want(JobId job, plan::Policy policy) {
  local_.Want(job, policy);
  Act();
}

void Plans::Take(const PlanMade& message) {
  if ((message.token & kLocalPlanToken) == 0) return peers_.PlanCame(message);
  local_.Take(message);
  Act();
}

void Plans::Act() {
  for (LocalAction& action : local_.TakeActions()) {
    const auto* told = std::get_if<ToDispatch>(&action);
    const auto* failed = told == nullptr ? nullptr : std::get_if<JobFailed>(&told->message);
    if (failed != nullptr) desk_.leases.FailJob(failed->job, failed->code, failed->cause);
    std::visit([this](auto& each) { outbox_.Send(std::move(each)); }, action);
  }
}

}  // namespace headrace::service
