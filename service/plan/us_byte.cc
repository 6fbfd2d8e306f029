#include "service/plan/us_byte.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ipc/base/check.h"
#include "service/plan/ready_set.h"

namespace headrace::plan {
namespace {

constexpr std::uint64_t kSmallestUnit = 16 << 10;
constexpr double kSizeStep = 1.25;
constexpr std::uint64_t kUnitsMax = 8192;  // per iteration; smaller units are not tried
// Tensors looked at in all trials of one search together. It ends searches on models of several
// thousand tensors, where going on would take minutes; smaller ones never reach it.
constexpr std::size_t kSearchWorkMax = 20'000'000;
constexpr std::size_t kSearchedSizes = 6;  // unit sizes that get a search of priorities

// One pass over an iteration. Copies are snapshots: the search goes on from one many times.
class Pass {
 public:
  Pass(const Workload& work, const PiecewiseCost& line, std::uint64_t unit_bytes)
      : unit_bytes_(unit_bytes),
        startup_s_(line.Seconds(0)),
        next_(static_cast<std::uint32_t>(work.size())),
        previous_(next_),
        ready_(work.size()),
        rest_(work.bytes) {}

  // Until the lane is free at or after the release of `tensor`, which is not yet seen.
  void RunUntil(const Workload& work, const PiecewiseCost& line, const UsByteTuning& tuning,
                const std::vector<std::uint32_t>& by_priority, std::uint32_t tensor,
                std::vector<double>& first_s, Draft* draft) {
    const auto none = static_cast<std::uint32_t>(work.size());
    while (true) {
      while (next_ > tensor + 1 && work.release_s[next_ - 1] <= now_) {
        ready_.Insert(tuning.priorities[--next_]);
      }
      HR_CHECK(next_ > tensor, next_, tensor);
      const double release_s = work.release_s[next_ - 1];
      if (next_ == tensor + 1 && release_s <= now_) return;
      const std::uint32_t urgent = ready_.First(none);
      if (urgent == none) {
        now_ = release_s;
        previous_ = none;
        continue;
      }
      Send(work, line, by_priority[urgent], urgent, release_s, first_s, draft);
    }
  }

  // Phase 2; tensor 0 must be all that is not yet released. Returns the iteration time.
  double Finish(const Workload& work, const PiecewiseCost& line, std::vector<double>& first_s,
                Draft* draft) {
    HR_CHECK(next_ == 1, next_);
    now_ = std::max(now_, work.release_s[0]);
    for (std::uint32_t l = 0; l < work.size(); ++l) {
      const std::uint64_t rest = rest_[l];
      if (rest == 0) continue;
      if (rest == work.bytes[l]) first_s[l] = now_;
      if (draft != nullptr) Record(*draft, l, work.bytes[l] - rest, rest, false);
      now_ += line.Seconds(rest);
      iteration_s_ = std::max(iteration_s_, now_ + work.tail_s[l]);
    }
    return std::max(iteration_s_, work.backward_s() + work.forward_s());
  }

 private:
  void Send(const Workload& work, const PiecewiseCost& line, std::uint32_t tensor,
            std::uint32_t priority, double release_s, std::vector<double>& first_s, Draft* draft) {
    const bool grows = tensor == previous_;
    const std::uint64_t rest = rest_[tensor];
    if (rest == work.bytes[tensor]) first_s[tensor] = now_;
    const std::uint64_t before = grows ? block_bytes_ : 0;
    const double paid_s = grows ? line.Seconds(before) : 0;
    const double gap_s = release_s - now_;
    std::uint64_t bytes = rest;
    if (!grows && gap_s < startup_s_) {
      bytes = std::min(rest, unit_bytes_);
    } else if (line.Seconds(before + rest) - paid_s > gap_s) {
      const double fit = line.BytesWithin(paid_s + gap_s) - static_cast<double>(before);
      const double units = std::ceil(fit / static_cast<double>(unit_bytes_));
      if (units * static_cast<double>(unit_bytes_) < static_cast<double>(rest)) {
        bytes = std::max<std::uint64_t>(1, units > 0 ? static_cast<std::uint64_t>(units) : 0) *
                unit_bytes_;
        bytes = std::min(bytes, rest);
      }
    }
    HR_CHECK(bytes > 0 && bytes <= rest, tensor, bytes, rest);
    if (draft != nullptr) Record(*draft, tensor, work.bytes[tensor] - rest, bytes, grows);
    block_bytes_ = before + bytes;
    now_ += line.Seconds(block_bytes_) - paid_s;
    rest_[tensor] = rest - bytes;
    previous_ = tensor;
    if (rest_[tensor] > 0) return;
    ready_.Erase(priority);
    iteration_s_ = std::max(iteration_s_, now_ + work.tail_s[tensor]);
  }

  static void Record(Draft& draft, std::uint32_t tensor, std::uint64_t offset, std::uint64_t bytes,
                     bool grows) {
    if (!grows) draft.Open();
    draft.Append(tensor, offset, bytes);
  }

  std::uint64_t unit_bytes_;
  double startup_s_;
  double now_ = 0;
  double iteration_s_ = 0;
  std::uint64_t block_bytes_ = 0;  // of the block that may grow
  std::uint32_t next_;             // tensors below this index are not released
  std::uint32_t previous_;         // tensor of the block just sent; none after an idle lane
  ReadySet ready_;                 // priorities of ready tensors
  std::vector<std::uint64_t> rest_;
};

std::vector<std::uint32_t> Inverse(const std::vector<std::uint32_t>& priorities) {
  std::vector<std::uint32_t> inverse(priorities.size());
  for (std::uint32_t l = 0; l < priorities.size(); ++l) {
    HR_CHECK(priorities[l] < inverse.size(), l, priorities[l]);
    inverse[priorities[l]] = l;
  }
  return inverse;
}

UsByteTuning InputFirst(const Workload& work, std::uint64_t unit_bytes) {
  UsByteTuning tuning{unit_bytes, std::vector<std::uint32_t>(work.size())};
  std::iota(tuning.priorities.begin(), tuning.priorities.end(), 0);
  return tuning;
}

// The iteration time with given tuning, going on from a snapshot.
double TimeFrom(Pass pass, const Workload& work, const PiecewiseCost& line,
                const UsByteTuning& tuning, std::vector<double>& first_s) {
  pass.RunUntil(work, line, tuning, Inverse(tuning.priorities), 0, first_s, nullptr);
  return pass.Finish(work, line, first_s, nullptr);
}

// The first tensor, from the input, whose gradient is ready before `time_s`.
std::uint32_t ReadyBefore(const Workload& work, double time_s) {
  const auto found = std::partition_point(work.release_s.begin(), work.release_s.end(),
                                          [&](double release_s) { return release_s >= time_s; });
  return static_cast<std::uint32_t>(found - work.release_s.begin());
}

std::vector<std::uint64_t> UnitSizes(const Workload& work) {
  const std::uint64_t largest = *std::max_element(work.bytes.begin(), work.bytes.end());
  const std::uint64_t size =
      std::max(std::min(kSmallestUnit, largest / 64 + 1), work.total_bytes() / kUnitsMax);
  std::vector<std::uint64_t> sizes;
  for (auto real = static_cast<double>(size); sizes.empty() || sizes.back() < largest;
       real *= kSizeStep) {
    const double elements = std::ceil(real / static_cast<double>(work.element_bytes));
    sizes.push_back(static_cast<std::uint64_t>(elements) * work.element_bytes);
  }
  HR_CHECK(sizes.back() >= largest, sizes.back(), largest);
  // The largest of equally good sizes is taken, as it makes the fewest blocks.
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

}  // namespace

Draft UsByte(const Workload& work, const PiecewiseCost& line, const UsByteTuning& tuning) {
  HR_CHECK(tuning.unit_bytes > 0 && tuning.priorities.size() == work.size(), tuning.unit_bytes);
  Draft draft;
  std::vector<double> first_s(work.size());
  Pass pass(work, line, tuning.unit_bytes);
  pass.RunUntil(work, line, tuning, Inverse(tuning.priorities), 0, first_s, &draft);
  pass.Finish(work, line, first_s, &draft);
  return draft;
}

UsByteTuning SearchPriorities(const Workload& work, const PiecewiseCost& line,
                              std::uint64_t unit_bytes) {
  UsByteTuning best = InputFirst(work, unit_bytes);
  Pass pass(work, line, unit_bytes);
  std::vector<double> first_s(work.size());
  double best_s = TimeFrom(pass, work, line, best, first_s);
  std::vector<double> trial_first_s(work.size());
  std::vector<double> unused_s(work.size());
  std::size_t looked_at = 0;
  for (auto l = static_cast<std::uint32_t>(work.size()) - 1; l >= 1 && l < work.size(); --l) {
    if (looked_at > kSearchWorkMax) break;
    if (first_s[l] >= work.backward_s()) continue;  // it has no block in phase 1
    const double whole_s = first_s[l] + line.Seconds(work.bytes[l]);
    const std::uint32_t k = ReadyBefore(work, whole_s);
    if (k >= l) continue;
    looked_at += work.size();
    // Nothing before the release of l depends on the priorities of l and of later gradients, so
    // every trial starts from there. Changes kept never overlap, as the search goes on below k.
    pass.RunUntil(work, line, best, Inverse(best.priorities), l, unused_s, nullptr);
    UsByteTuning trial = best;
    trial.priorities[l] = best.priorities[k];
    for (std::uint32_t j = k; j < l; ++j) ++trial.priorities[j];
    trial_first_s = first_s;
    const double trial_s = TimeFrom(pass, work, line, trial, trial_first_s);
    if (trial_s >= best_s) continue;
    best_s = trial_s;
    best = std::move(trial);
    std::swap(first_s, trial_first_s);
    l = k;
  }
  return best;
}

const PolicyTraits kUsByteTraits = {
    .barrier = false, .sizes_by_cost = true, .halves = false, .from_others = false};

Draft UsByte(const Workload& work, const Route& route, const DraftOptions& options) {
  const PiecewiseCost line = SteadyLine(route);
  if (options.settings.unit_bytes > 0) {
    return UsByte(work, line, SearchPriorities(work, line, options.settings.unit_bytes));
  }
  return UsByte(work, line, TuneUsByte(work, route));
}

UsByteTuning TuneUsByte(const Workload& work, const Route& route) {
  const PiecewiseCost line = SteadyLine(route);
  struct Sized {
    double iteration_s;
    std::uint64_t unit_bytes;
  };
  std::vector<Sized> sizes;
  std::vector<double> first_s(work.size());
  for (const std::uint64_t size : UnitSizes(work)) {
    const UsByteTuning tuning = InputFirst(work, size);
    sizes.push_back({TimeFrom(Pass(work, line, size), work, line, tuning, first_s), size});
  }
  std::stable_sort(sizes.begin(), sizes.end(), [](const Sized& left, const Sized& right) {
    return left.iteration_s < right.iteration_s;
  });
  sizes.resize(std::min(sizes.size(), kSearchedSizes));
  UsByteTuning best;
  double best_s = 0;
  for (const Sized& size : sizes) {
    UsByteTuning tuning = SearchPriorities(work, line, size.unit_bytes);
    const double seconds = MakeTimetable(work, route, UsByte(work, line, tuning)).iteration_s;
    if (best.unit_bytes != 0 && seconds >= best_s) continue;
    best_s = seconds;
    best = std::move(tuning);
  }
  HR_CHECK(best.unit_bytes > 0 && best.priorities.size() == work.size(), best.unit_bytes);
  return best;
}

}  // namespace headrace::plan
