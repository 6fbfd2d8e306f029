// The plans of jobs all of whose ranks are on this node: no leader, no connection, the same
// planning. Pure: no clock, no log.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "service/cluster/forming.h"
#include "service/cluster/layouts.h"
#include "service/cluster/outgoing.h"
#include "service/cluster/planning.h"
#include "service/session/session.h"

namespace headrace::service {

struct LocalPlansOptions {
  std::string node_name;
  plan::Policy policy = plan::Policy::kExact;  // of jobs whose ranks name none
  // How long a job may take from its first rank to its last; the first rank's own timeout counts
  // where it is longer.
  TimeNs forming_ns = kFormingDefault;
};

using LocalAction = std::variant<ToDispatch, ToWatch>;

class LocalPlans {
 public:
  explicit LocalPlans(LocalPlansOptions options) : options_(std::move(options)) {}

  // Ranks of jobs without a rendezvous come and go.
  void RankAttached(const SessionIdentity& identity);
  void RankEnded(const SessionIdentity& identity);

  // When Expire is due, kNever: every job has all of its ranks. Expire fails those that have lacked
  // some for longer than they may.
  TimeNs NextDeadline() const { return forming_.NextDeadline(); }
  void Expire(TimeNs now);

  // Whether the rank may hand the layout in, and that it has. A rank of an unknown job may: it has
  // ended, and dispatch says so.
  Status CheckLayout(JobId job, std::uint32_t rank, const Layout& layout,
                     std::optional<plan::Policy> policy) const;
  void LayoutSet(JobId job, std::uint32_t rank, std::shared_ptr<const Layout> layout,
                 std::optional<plan::Policy> policy);
  // The jobs of that name, the newest last; FindJob gives that one.
  std::vector<KnownJob> FindJobs(std::string_view name) const;
  std::optional<KnownJob> FindJob(std::string_view name) const;
  void Want(JobId job, plan::Policy policy);

  // Of jobs that are not known here they are ignored.
  void Take(const PlanTaken& message);
  void Take(const TimesSeen& message);
  void Take(const PlanMade& message);

  // What to do since the last call, in order.
  std::vector<LocalAction> TakeActions() { return std::exchange(actions_, {}); }
  std::size_t jobs_count() const { return jobs_.size(); }

 private:
  struct Job {
    std::string name;
    std::uint32_t uid = 0;
    std::uint32_t world_size = 1;
    std::uint32_t attached = 0;
    std::set<std::uint32_t> came;  // ranks, gone or not
    NodeLayouts layouts;
    Planning planning;
    // Offered to dispatch last, and its hash.
    std::shared_ptr<const plan::Plan> offered;
    std::uint64_t offered_hash = 0;
  };

  Job* Find(JobId id);
  void GoOn(JobId id, Job& job);
  void Do(JobId id, Job& job, const MakePlan& make);
  void Do(JobId id, Job& job, const PlanOffer& offer);
  void Do(JobId id, Job& job, const PlanSwitch& change);
  void Do(JobId id, Job& job, const PlanFailure& failure);
  void Do(JobId id, Job& job, const PlanNote& note);

  LocalPlansOptions options_;
  std::map<JobId, Job> jobs_;
  Forming forming_;  // by JobId
  std::vector<LocalAction> actions_;
};

}  // namespace headrace::service
