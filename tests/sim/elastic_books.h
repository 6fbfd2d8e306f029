// What the processes of one job were told about who is left of it, and which averages they have
// applied: finds an epoch with two mappings of ranks, a rank for somebody who is lost, a sum of
// others than those who belong to it, and an iteration that is not the same for all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/base/clock.h"
#include "service/peers/messages.h"
#include "service/session/nodes.h"
#include "service/session/quorum.h"
#include "tests/sim/program.h"
#include "tests/sim/training.h"

namespace headrace::sim {

// An average of one gradient that a process holds, and of whose gradients it is.
struct Average {
  std::uint32_t contributors = 0;  // ElasticBooks::AddContributors; 0: the process has none
  std::vector<std::byte> bytes{};
};

class ElasticBooks {
 public:
  struct Rules {
    std::uint64_t seed = 0;
    Values values = Values::kExact;
    std::uint32_t world_size = 1;  // in the beginning
    std::uint32_t min_world = 1;
    bool is_majority = false;      // no two parts of the job can go on beside each other
    TimeNs noticed_within_ns = 0;  // after which a process that is gone has no rank any more
  };
  ElasticBooks(const Rules& rules, Model model);

  const Model& model() const { return model_; }
  const service::Layout& layout() const { return *model_.layout; }
  std::size_t tensors_count() const { return layout().tensors.size(); }
  const Rules& rules() const { return rules_; }

  // ---- gradients ----
  Planned PlannedOf(std::uint32_t tensor) const;
  // What that process gives in that iteration, each time that it is summed; something else in each
  // of the iterations before and after.
  const std::vector<std::byte>& GradientOf(std::uint32_t process, std::uint64_t iteration,
                                           std::uint32_t tensor);
  // A number for those processes; the same for the same ones.
  std::uint32_t AddContributors(std::vector<std::uint32_t> processes);

  // ---- who is left ----
  void OnAsked(std::uint32_t process, const service::AskQuorum& ask);
  // Its question was answered by an error that is for good.
  void OnRefused(std::uint32_t member) { asking_.erase(member); }
  void OnGone(std::uint32_t process, TimeNs now) { gone_ns_.try_emplace(process, now); }
  std::optional<std::string> OnDecided(std::uint32_t process, service::MemberRole role,
                                       const service::Membership& before,
                                       const service::Quorum& quorum, TimeNs now);
  // The process is a rank of a job that runs. `node` is its own; `nodes` as that was told, null
  // where the job is on one node only.
  struct Meeting {
    std::uint32_t process = 0;
    std::uint32_t member = 0;
    std::uint32_t rank = 0;
    const service::Membership& membership;
    std::uint64_t key = 0;
    std::uint32_t epoch = 0;
    std::string leader;  // where the job meets; empty: its ranks are on one node
    std::string node;
    const service::JobNodes* nodes = nullptr;
  };
  std::optional<std::string> OnMet(const Meeting& met);
  // Whether a job has begun without that member after it had been one.
  bool IsLeftOut(std::uint32_t member) const;
  // The process that has the member's number.
  std::uint32_t ProcessOf(std::uint32_t member) const { return processes_.at(member); }
  // The processes of the ranks of the job that was formed last.
  const std::vector<std::uint32_t>& last_met() const { return last_met_; }

  // ---- iterations ----
  // The process applies the averages of the iteration after `state`, and is in the state that is
  // returned; or what is wrong.
  Result<std::uint64_t> OnApplied(std::uint32_t process, std::uint64_t iteration,
                                  std::uint64_t state, const std::vector<Average>& averages);
  // The process was given the state after that iteration.
  std::optional<std::string> OnReceived(std::uint32_t process, std::uint64_t iteration,
                                        std::uint64_t state) const;
  std::uint64_t applied() const { return applied_.size(); }

  // ---- what has happened ----
  struct Counts {
    std::uint64_t shrinks = 0;  // jobs that have begun with fewer ranks
    std::uint64_t joins = 0;    // processes that were taken in
    std::uint64_t spares = 0;   // ... for lost ones
    std::uint64_t moves = 0;    // jobs that have begun at another leader
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Formed {
    service::Membership membership;
    std::uint32_t epoch = 0;
    std::map<std::uint32_t, std::uint32_t> processes{};  // by rank
  };
  struct Iteration {
    std::uint32_t contributors = 0;
    std::uint64_t before = 0;  // the state
    std::uint64_t after = 0;
  };

  std::optional<std::string> CheckDecision(std::uint32_t process, const service::Quorum& quorum,
                                           TimeNs now);
  std::optional<std::string> CheckLine(const Meeting& met, const Formed& formed);
  void Count(const Meeting& met);
  std::optional<std::string> CheckSum(std::uint64_t iteration, std::uint32_t tensor,
                                      const Average& average);

  Rules rules_;
  Model model_;
  // By process, tensor and iteration, of which so many differ: to make them takes long.
  static constexpr std::uint64_t kGradientsMade = 12;
  std::map<std::array<std::uint64_t, 3>, std::vector<std::byte>> gradients_;
  std::vector<std::vector<std::uint32_t>> contributors_;  // number 1 is the first
  std::map<std::uint32_t, std::uint32_t> processes_;      // by member
  std::set<std::uint32_t> asking_;                        // members that asked since they met last
  std::map<std::uint32_t, TimeNs> gone_ns_;               // by process
  std::map<std::uint32_t, service::Membership> decided_;  // by generation; with a majority
  std::map<std::uint32_t, std::set<std::uint32_t>> spares_;  // taken in, by generation
  std::map<std::uint64_t, Formed> formed_;                   // by key
  std::map<std::uint32_t, std::uint64_t> epochs_;            // keys; with a majority
  std::map<std::uint32_t, service::Membership> line_;        // by generation, that came about
  std::map<std::uint32_t, std::uint32_t> last_epochs_;       // by process
  std::vector<std::uint32_t> last_met_;
  std::string last_leader_;
  std::vector<Iteration> applied_;  // iteration 1 is the first
  Counts counts_;
};

}  // namespace headrace::sim
