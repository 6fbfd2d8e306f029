#include <algorithm>
#include <cmath>
#include <limits>

#include "ipc/base/check.h"
#include "service/plan/exact.h"
#include "service/plan/sweep.h"

namespace headrace::plan {
namespace {

// A part of an element that rounding may hide.
constexpr double kElementRounding = 1e-6;
// A plan this much above the sweep's time has lost it to cutting between elements only.
constexpr double kLossTolerance = 1e-12;
// Trying one element more and less per block costs a timetable each; beyond this many it is not
// worth the nanosecond it could win.
constexpr std::size_t kNudgedBlocksMax = 64;

struct Cut {
  std::uint32_t tensor = 0;
  // The lane may be busy until here before the block of this cut begins without making any tensor
  // late: the release time plus the least slack of the tensors that rely on the cut. It lets blocks
  // be rounded up to whole elements where that is harmless.
  double latest_s = 0;
};

std::vector<Cut> CutsOf(const Workload& work, const Sweep& sweep, const CostPiece& line) {
  std::vector<Cut> cuts{{0, std::numeric_limits<double>::infinity()}};
  for (const SweepStep& step : sweep.steps) {
    HR_CHECK(step.cut >= cuts.back().tensor && step.cut < work.size(), step.cut,
             cuts.back().tensor);
    if (step.cut != cuts.back().tensor) {
      cuts.push_back({step.cut, std::numeric_limits<double>::infinity()});
    }
    const double after_s = work.tail_s[step.group] + step.startups * line.startup_s +
                           line.s_per_byte * static_cast<double>(work.prefix_bytes[step.last]);
    cuts.back().latest_s = std::min(cuts.back().latest_s, sweep.iteration_s - after_s);
  }
  for (Cut& cut : cuts) {
    const double release_s = work.release_s[cut.tensor];
    cut.latest_s = std::isfinite(cut.latest_s) ? std::max(cut.latest_s, release_s) : release_s;
  }
  return cuts;
}

// Builds the draft; `nudges[i]` elements more than fit are put into the i-th block of phase 1.
class Builder {
 public:
  Builder(const Workload& work, const CostPiece& line, const Sweep& sweep)
      : work_(work), line_(line), sweep_(sweep), cuts_(CutsOf(work, sweep, line)) {}

  std::size_t phase1_blocks() const { return cuts_.size() - 1; }

  Draft Build(const std::vector<int>& nudges, bool filling) {
    HR_CHECK(nudges.size() == phase1_blocks(), nudges.size(), phase1_blocks());
    draft_ = {};
    sent_.assign(work_.size(), 0);
    double now = 0;
    for (std::size_t index = cuts_.size(); index-- > 1;) {
      const double cut_s = work_.release_s[cuts_[index].tensor];
      if (filling) FillIdle(now, cut_s);
      now = std::max(now, cut_s);
      const std::uint64_t bytes = Fit(now, cuts_[index - 1], nudges[index - 1]);
      if (bytes == 0) continue;
      const std::uint64_t popped = Pop(cuts_[index].tensor, bytes);
      if (popped > 0) now += line_.Seconds(static_cast<double>(popped));
    }
    if (filling) FillIdle(now, work_.backward_s());
    Group();
    return std::move(draft_);
  }

 private:
  // Whole elements of a block that begins at `now` and ends at the next cut: rounded up where the
  // overhang makes no tensor late, else down.
  std::uint64_t Fit(double now, const Cut& next, int nudge) const {
    const auto element = static_cast<double>(work_.element_bytes);
    const std::uint64_t all = work_.total_bytes() / work_.element_bytes;
    const auto most = static_cast<double>(all);
    const double cost_s = line_.s_per_byte * element;
    const double room_s = work_.release_s[next.tensor] - now - line_.startup_s;
    double elements = room_s < 0 ? 0 : most;
    if (elements > 0 && cost_s > 0) {
      const double fit = std::max(0.0, room_s / cost_s + kElementRounding);
      elements = std::floor(fit);
      const double overhang_s = (elements + 1) * cost_s - room_s;
      const double allowed_s = next.latest_s - work_.release_s[next.tensor];
      if (fit - elements > 2 * kElementRounding && overhang_s <= allowed_s) elements += 1;
    }
    elements = std::clamp(elements + nudge, 0.0, most);
    return static_cast<std::uint64_t>(elements) * work_.element_bytes;
  }

  // The sweep leaves the lane idle where no tensor would be late for it. One more block there takes
  // nothing from anyone and leaves the plan room for delays: the block that carries most of what is
  // ready, among those that begin when the lane falls idle or at a release and end by `until_s`.
  void FillIdle(double now, double until_s) {
    const double slope_s = line_.s_per_byte;
    double ready_bytes = 0;
    double most_bytes = 0;
    std::uint32_t best = 0;
    for (auto l = static_cast<std::uint32_t>(work_.size()); l-- > 0;) {
      if (work_.release_s[l] >= until_s) break;
      ready_bytes += static_cast<double>(work_.bytes[l] - sent_[l]);
      if (l > 0 && work_.release_s[l - 1] <= now) continue;
      const double room_s = until_s - std::max(now, work_.release_s[l]) - line_.startup_s;
      if (room_s <= 0) break;
      const double fits = slope_s > 0 ? std::min(ready_bytes, room_s / slope_s) : ready_bytes;
      if (fits <= most_bytes) continue;
      most_bytes = fits;
      best = l;
    }
    // Less than a startup's worth of bytes is not worth a block.
    if (most_bytes * slope_s <= line_.startup_s || most_bytes < 1) return;
    const auto elements = static_cast<std::uint64_t>(most_bytes) / work_.element_bytes;
    Pop(best, elements * work_.element_bytes);
  }

  // Takes up to `bytes` from the top of the stack of gradients that are ready at the cut. Each
  // tensor is sent from its front.
  std::uint64_t Pop(std::uint32_t cut, std::uint64_t bytes) {
    std::uint64_t left = bytes;
    draft_.Open();
    for (std::uint32_t l = cut; l < work_.size() && left > 0; ++l) {
      const std::uint64_t taken = std::min(left, work_.bytes[l] - sent_[l]);
      draft_.Append(l, sent_[l], taken);
      sent_[l] += taken;
      left -= taken;
    }
    draft_.Close();
    return bytes - left;
  }

  void Group() {
    HR_CHECK(!sweep_.steps.empty() && sweep_.steps.back().last + 1 == work_.size(),
             sweep_.steps.size());
    std::uint32_t group = 0;
    std::size_t step = 0;
    draft_.Open();
    for (std::uint32_t l = 0; l < work_.size(); ++l) {
      while (step + 1 < sweep_.steps.size() && l > sweep_.steps[step].last) ++step;
      if (sweep_.steps[step].group != group) {
        group = sweep_.steps[step].group;
        draft_.Close();
        draft_.Open();
      }
      draft_.Append(l, sent_[l], work_.bytes[l] - sent_[l]);
    }
    draft_.Close();
  }

  const Workload& work_;
  const CostPiece& line_;
  const Sweep& sweep_;
  const std::vector<Cut> cuts_;  // by rising tensor, that is falling time; the first is T_B
  std::vector<std::uint64_t> sent_;
  Draft draft_;
};

}  // namespace

LaneOptimum ExactOnLane(const Workload& work, const CostPiece& line, double bound_s) {
  const Sweep sweep = SweepCuts(work, line.startup_s, line.s_per_byte, bound_s);
  const Route route = AllReduceRoute({{line}});
  Builder builder(work, line, sweep);
  std::vector<int> nudges(builder.phase1_blocks(), 0);
  Draft best = builder.Build(nudges, true);
  double best_s = MakeTimetable(work, route, best).iteration_s;
  const double enough_s = sweep.iteration_s * (1 + kLossTolerance);
  const std::size_t nudged = nudges.size() > kNudgedBlocksMax ? 0 : nudges.size();
  for (std::size_t index = 0; index < nudged && best_s > enough_s; ++index) {
    const int before = nudges[index];
    int kept = before;
    for (const int nudge : {1, -1}) {
      nudges[index] = before + nudge;
      Draft draft = builder.Build(nudges, true);
      const double seconds = MakeTimetable(work, route, draft).iteration_s;
      if (seconds >= best_s) continue;
      best_s = seconds;
      best = std::move(draft);
      kept = nudges[index];
    }
    nudges[index] = kept;
  }
  return {std::move(best), best_s <= enough_s};
}

}  // namespace headrace::plan
