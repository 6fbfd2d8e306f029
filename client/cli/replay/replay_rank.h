// Plays the iterations of one rank: forward, backward, forward, ... with sleeps for computing.
//
// First iterations to warm up, until the plan that is asked for is in force and every rank says so;
// then the iterations that count, and one forward pass that ends the last of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/cli/replay/pace.h"
#include "client/cli/replay/plan_watch.h"
#include "client/cli/replay/rank_session.h"
#include "client/cli/replay/values.h"

namespace headrace::replay {

// Iterations after which no plan is waited for any longer.
inline constexpr std::uint64_t kWarmupMax = 300;

// How it is played, the same on all ranks.
struct ReplayConfig {
  Profile profile;
  std::uint64_t iterations = 20;  // that count
  std::uint64_t warmup = 3;       // at least
  double jitter = 0;              // 0 to 1
  std::uint64_t seed = 1;
  std::string policy;  // empty: whichever is in force
};

// One iteration: from one backward pass's begin to the next one's.
struct Iteration {
  TimeNs whole_ns = 0;
  TimeNs backward_ns = 0;  // to the last post
  TimeNs forward_ns = 0;   // without its waits
  TimeNs waited_ns = 0;
};

// What happened when.
struct Activity {
  enum class Kind { kBackward, kWait, kForward };
  Kind kind = Kind::kBackward;
  std::size_t tensor = 0;
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
};

// One iteration, span by span.
struct IterationTrace {
  std::uint64_t iteration = 0;  // as the service counts them, from 1
  TimeNs begin_ns = 0;          // of its backward pass
  std::vector<Activity> spans;
};

struct ReplayResult {
  // The board shows some iterations only; one of so many last ones is among them.
  static constexpr std::size_t kTraces = 16;

  std::vector<Iteration> iterations;
  std::uint64_t warmup = 0;          // iterations before those that count
  std::uint64_t values_checked = 0;  // iterations whose averages were looked at; 0: not possible
  std::vector<IterationTrace> traces =
      std::vector<IterationTrace>(kTraces);  // iteration i stands at i % kTraces

  const IterationTrace& trace(std::uint64_t iteration) const { return traces[iteration % kTraces]; }
};

// Plays one rank. One thread.
class ReplayRank {
 public:
  // All outlive it. `rank` and `world_size` are those that `session` was attached with.
  ReplayRank(RankSession& session, const PlanWatch& watch, const ReplayConfig& config,
             std::uint32_t rank, std::uint32_t world_size);

  // Plays everything. The error is the job's own, or names what did not come in time, or the
  // element that is not the average of all ranks.
  Result<ReplayResult> Run();

 private:
  Status Forward();
  Status Backward();
  Status ReachTensor(std::size_t index);
  Status BetweenPasses();
  Status CheckValues();
  void FillValues();
  Result<bool> MayCount();
  void SleepToDue(bool exactly);
  void Note(Activity::Kind kind, std::size_t tensor, TimeNs begin_ns, TimeNs end_ns);
  TimeNs TimeOf(double seconds, std::uint32_t pass, std::size_t tensor) const;

  RankSession& session_;
  const PlanWatch& watch_;
  const ReplayConfig& config_;
  const std::uint32_t rank_;
  const std::optional<Values> values_;
  Pace pace_;
  ReplayResult result_;
  Iteration current_;
  std::uint64_t iteration_ = 0;               // of the backward pass that began last; from 1
  std::optional<std::uint64_t> counts_from_;  // the first iteration that counts
  std::optional<std::uint64_t> filled_in_;    // iteration whose values stand in the gradients
};

// Whether iterations from `iteration` on are moved by the plan that is asked for: one made from
// times that were recorded, with no other on its way.
bool IsInForce(const std::optional<ipc::PlanRow>& plan, const std::string& policy,
               std::uint64_t iteration);

}  // namespace headrace::replay
