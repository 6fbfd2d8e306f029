// The plans of all jobs that have ranks here, wherever those are led: jobs all of whose ranks are
// here are planned here, the others by the service at their rendezvous. The peers thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/base/result.h"
#include "service/cluster/local_plans.h"
#include "service/loop/outbox.h"
#include "service/peers/alarm.h"
#include "service/peers/peers.h"
#include "service/peers/peers_thread.h"

namespace headrace::service {

class Plans final : private kj::TaskSet::ErrorHandler {
 public:
  // All outlive this.
  Plans(const PeerOptions& options, const PeersPorts& ports, Peers& peers, Outbox& outbox);

  // ---- from the leases ----
  void RankAttached(const SessionIdentity& identity);
  void RankEnded(const SessionIdentity& identity);

  // ---- from sessions and admins ----
  // Compares the layout with those of the job's other ranks, gives it to dispatch and plans with
  // it. One that is not the other ranks' ends the job: none of its gradients can ever move.
  Status HandIn(const HandInLayout& message);
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
  Status Check(const HandInLayout& message) const;
  void LayoutRefused(const SessionIdentity& identity, const Error& error);
  void Act();
  void taskFailed(kj::Exception&& exception) override;

  const PeersPorts& ports_;
  Peers& peers_;
  Outbox& outbox_;
  LocalPlans local_;
  kj::TaskSet tasks_;
  Alarm alarm_;  // of jobs that take too long to form
};

}  // namespace headrace::service
