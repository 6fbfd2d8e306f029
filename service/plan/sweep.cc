#include "service/plan/sweep.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "service/plan/infinity.h"

namespace headrace::plan {
namespace {

// Two ways to add up the same times may differ by this much; it is far below any clock.
constexpr double kRounding = 1e-14;
constexpr int kProbesMax = 200;

struct State {
  std::uint32_t cut = 0;
  std::uint32_t group = 0;
  std::uint32_t late = 0;    // the first tensor that is late; the number of tensors if none is
  std::int32_t parent = -1;  // the state this one came from, -1 for the first
};

class Sweeper {
 public:
  Sweeper(const Workload& work, double startup_s, double s_per_byte)
      : work_(work), startup_s_(startup_s), size_(static_cast<std::uint32_t>(work.size())) {
    load_s_.reserve(work.size());
    for (const std::uint64_t bytes : work.prefix_bytes) {
      load_s_.push_back(s_per_byte * static_cast<double>(bytes));
    }
  }

  // Whether some plan takes no longer than `trial_s`. If not, `shortfall_s()` more is the least
  // that could change the answer.
  bool Feasible(double trial_s) {
    arena_.clear();
    shortfall_s_ = kInfinity;
    slack_s_ = kRounding * trial_s;
    std::size_t level_begin = 0;
    arena_.push_back(Make(trial_s, {0, 0, 0, -1}, 1));
    for (std::uint32_t startups = 1; level_begin < arena_.size(); ++startups) {
      const std::size_t level_end = arena_.size();
      for (std::size_t index = level_begin; index < level_end; ++index) {
        if (arena_[index].late == size_) {
          winner_ = index;
          return true;
        }
      }
      Branch(level_begin, level_end);
      for (const State& child : children_) arena_.push_back(Make(trial_s, child, startups + 1));
      level_begin = level_end;
    }
    return false;
  }

  double shortfall_s() const { return shortfall_s_; }

  // The steps of the state that got through, and the time they really take.
  Sweep Winner() const {
    Sweep sweep;
    auto index = static_cast<std::int32_t>(winner_);
    for (; index >= 0; index = arena_[static_cast<std::size_t>(index)].parent) {
      HR_CHECK(static_cast<std::size_t>(index) < arena_.size(), index, arena_.size());
      const State& state = arena_[static_cast<std::size_t>(index)];
      HR_CHECK(state.parent < index, index, state.parent);
      sweep.steps.push_back({state.cut, state.group, 0, state.late});
    }
    std::reverse(sweep.steps.begin(), sweep.steps.end());
    std::uint32_t startups = 0;
    std::uint32_t first = 0;
    std::vector<SweepStep> kept;
    for (SweepStep step : sweep.steps) {
      step.startups = ++startups;
      const std::uint32_t late = step.last;
      if (late == first) continue;  // both a cut and a group at one tensor
      HR_CHECK(late > first, late, first);
      first = late;
      step.last = late - 1;
      sweep.iteration_s = std::max(sweep.iteration_s, EndOf(step));
      kept.push_back(step);
    }
    HR_CHECK(first == size_, first, size_);
    sweep.steps = std::move(kept);
    sweep.iteration_s = std::max(sweep.iteration_s, work_.backward_s() + work_.forward_s());
    return sweep;
  }

 private:
  double Fixed(std::uint32_t cut, std::uint32_t group, std::uint32_t startups) const {
    return work_.release_s[cut] + work_.tail_s[group] + startups * startup_s_;
  }
  double EndOf(const SweepStep& step) const {
    return Fixed(step.cut, step.group, step.startups) + load_s_[step.last];
  }

  // Finds the first late tensor of a state.
  State Make(double trial_s, State state, std::uint32_t startups) {
    const double room_s = trial_s - Fixed(state.cut, state.group, startups);
    const auto begin = load_s_.begin() + state.late;  // its parent has everything before in time
    const auto late = std::upper_bound(begin, load_s_.end(), room_s + slack_s_);
    state.late = static_cast<std::uint32_t>(late - load_s_.begin());
    if (late != load_s_.end()) shortfall_s_ = std::min(shortfall_s_, *late - room_s);
    return state;
  }

  // Puts the children of a level that no other child beats into children_, by falling cut.
  void Branch(std::size_t begin, std::size_t end) {
    candidates_.clear();
    for (std::size_t index = begin; index < end; ++index) {
      const State& state = arena_[index];
      const std::uint32_t late = state.late;
      HR_CHECK(late < size_, late, size_);
      const auto parent = static_cast<std::int32_t>(index);
      // A cut or a group that gains no more than the startup it costs is better left out.
      if (work_.release_s[state.cut] - work_.release_s[late] > startup_s_) {
        candidates_.push_back({late, state.group, late, parent});
      }
      if (work_.tail_s[state.group] - work_.tail_s[late] > startup_s_) {
        candidates_.push_back({state.cut, late, late, parent});
      }
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const State& left, const State& right) {
      if (left.cut != right.cut) return left.cut > right.cut;
      if (left.group != right.group) return left.group > right.group;
      return left.parent < right.parent;
    });
    children_.clear();
    for (const State& candidate : candidates_) {
      if (children_.empty() || candidate.group > children_.back().group) {
        children_.push_back(candidate);
      }
    }
  }

  const Workload& work_;
  const double startup_s_;
  const std::uint32_t size_;
  std::vector<double> load_s_;  // b*(M_0 + ... + M_l)
  std::vector<State> arena_;    // all states of a trial, level by level
  std::vector<State> candidates_;
  std::vector<State> children_;
  double shortfall_s_ = 0;
  double slack_s_ = 0;
  std::size_t winner_ = 0;
};

}  // namespace

Sweep SweepCuts(const Workload& work, double startup_s, double s_per_byte, double bound_s) {
  Sweeper sweeper(work, startup_s, s_per_byte);
  if (sweeper.Feasible(bound_s)) return sweeper.Winner();
  double low_s = bound_s + sweeper.shortfall_s();
  const double one_block_s = work.backward_s() + startup_s +
                             s_per_byte * static_cast<double>(work.total_bytes()) +
                             work.forward_s();
  HR_CHECK(sweeper.Feasible(one_block_s), one_block_s, bound_s);
  Sweep best = sweeper.Winner();
  // Between a time too short (low_s is the least not yet excluded) and one that is reached, probe
  // near the bound first with growing steps, then halve. Both ends move to times that some plan
  // has, so the interval closes on the optimum itself.
  double step_s = bound_s * 1e-3;
  for (int probe = 0; probe < kProbesMax; ++probe) {
    if (low_s >= best.iteration_s * (1 - 2 * kRounding)) break;
    double trial_s = probe % 2 == 1 ? low_s : low_s + (best.iteration_s - low_s) / 2;
    if (probe % 2 == 0 && low_s + step_s < trial_s) trial_s = low_s + step_s;
    step_s *= 4;
    if (sweeper.Feasible(trial_s)) {
      Sweep found = sweeper.Winner();
      if (found.iteration_s < best.iteration_s)
        best = std::move(found);
      else
        break;  // equal to rounding
    } else {
      low_s = std::max(low_s, trial_s + sweeper.shortfall_s());
    }
  }
  return best;
}

}  // namespace headrace::plan
