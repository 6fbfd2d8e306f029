// What clients ask of the plans of their jobs, wherever those are led: jobs all of whose
// ranks are here are planned here, the others by the service at their rendezvous. Control's thread
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"
#include "service/control/desk.h"
#include "service/control/outbox.h"
#include "service/control/peers/peers.h"
#include "service/membership/local_plans.h"

namespace headrace::service {

class Plans {
 public:
  // All outlive this.
  Plans(Desk& desk, Peers& peers, Outbox& outbox);

  // ---- from the leases ----
  void RankAttached(const SessionIdentity& identity);
  void RankEnded(const SessionIdentity& identity);

  // ---- from sessions and admins ----
  // Whether the rank may hand the layout in; then, once dispatch has it, that it has.
  Status CheckLayout(const SessionIdentity& identity, const Layout& layout,
                     std::optional<plan::Policy> policy) const;
  void LayoutSet(const SessionIdentity& identity, std::shared_ptr<const Layout> layout,
                 std::optional<plan::Policy> policy);
  // A layout that is not the other ranks' ends the job: none of its gradients can ever move.
  void LayoutRefused(const SessionIdentity& identity, const Error& error);
  // About jobs all of whose ranks are here; the newest last.
  std::vector<KnownJob> FindJobs(std::string_view name) const { return local_.FindJobs(name); }
  void Want(JobId job, plan::Policy policy);

  // ---- from dispatch and watch ----
  // Whoever does not know the job ignores it.
  template <typename Message>
  void Take(const Message& message) {
    local_.Take(message);
    Act();
    peers_.Take(message);
  }
  void Take(const PlanMade& message);

 private:
  void Act();

  Desk& desk_;
  Peers& peers_;
  Outbox& outbox_;
  LocalPlans local_;
};

// The policy of that name, nothing for an empty one, or which names there are.
Result<std::optional<plan::Policy>> ReadPolicyName(std::string_view name);

}  // namespace headrace::service
