#include "tests/unit/plan/reference.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace headrace::plan {
namespace {

// One choice of cuts (bit l: the release of l is a cut) and groups (bit l: a group starts at l).
double TimeOf(const Workload& work, const CostPiece& line, std::uint32_t cuts,
              std::uint32_t groups) {
  const std::size_t count = work.size();
  std::vector<double> left(work.bytes.begin(), work.bytes.end());
  double free_s = 0;
  for (std::size_t cut = count; cut-- > 1;) {
    if ((cuts >> cut & 1) == 0) continue;
    std::size_t next = cut - 1;
    while (next > 0 && (cuts >> next & 1) == 0) --next;
    double room = work.release_s[next] - work.release_s[cut] - line.startup_s;
    if (room < 0) return std::numeric_limits<double>::infinity();
    room = line.s_per_byte > 0 ? room / line.s_per_byte : std::numeric_limits<double>::infinity();
    for (std::size_t l = cut; l < count && room > 0; ++l) {
      const double taken = std::min(room, left[l]);
      left[l] -= taken;
      room -= taken;
    }
  }
  double iteration_s = work.backward_s() + work.forward_s();
  free_s = work.backward_s();
  for (std::size_t l = 0; l < count;) {
    std::size_t end = l + 1;
    while (end < count && (groups >> end & 1) == 0) ++end;
    double bytes = 0;
    std::size_t first = end;  // the first tensor of the group that still has bytes
    for (std::size_t member = l; member < end; ++member) {
      if (left[member] > 1e-9 && first == end) first = member;
      bytes += left[member];
    }
    if (first < end) {
      free_s += line.Seconds(bytes);
      iteration_s = std::max(iteration_s, free_s + work.tail_s[first]);
    }
    l = end;
  }
  return iteration_s;
}

class ScheduleSearch {
 public:
  ScheduleSearch(const Workload& work, const CostPiece& line)
      : work_(work), line_(line), left_(work.bytes) {
    best_s_ = work.backward_s() + line.Seconds(static_cast<double>(work.total_bytes())) +
              work.forward_s();
  }

  double Run() {
    Choose(0, work_.backward_s() + work_.forward_s());
    return best_s_;
  }

 private:
  void Choose(double now, double iteration_s) {
    if (iteration_s >= best_s_) return;
    double needed_s = iteration_s;
    for (std::size_t l = 0; l < left_.size(); ++l) {
      if (left_[l] == 0) continue;
      const double alone_s = line_.Seconds(static_cast<double>(left_[l]));
      needed_s = std::max(needed_s, std::max(now, work_.release_s[l]) + alone_s + work_.tail_s[l]);
    }
    if (needed_s >= best_s_) return;
    if (std::all_of(left_.begin(), left_.end(), [](std::uint64_t left) { return left == 0; })) {
      best_s_ = iteration_s;
      return;
    }
    for (std::size_t l = left_.size(); l-- > 0;) {
      if (work_.release_s[l] > now) {
        Choose(work_.release_s[l], iteration_s);  // wait for the next gradient
        break;
      }
    }
    Fill(left_.size(), now, iteration_s, 0, 0);
  }

  // Decides how much of the tensors below `tensor` the next block takes.
  void Fill(std::size_t tensor, double now, double iteration_s, std::uint64_t bytes,
            double tail_s) {
    if (tensor == 0 || work_.release_s[tensor - 1] > now) {
      if (bytes == 0) return;
      const double end_s = now + line_.Seconds(static_cast<double>(bytes));
      Choose(end_s, std::max(iteration_s, end_s + tail_s));
      return;
    }
    const std::size_t l = tensor - 1;
    const std::uint64_t all = left_[l];
    for (std::uint64_t taken = 0; taken <= all; taken += work_.element_bytes) {
      left_[l] = all - taken;
      Fill(l, now, iteration_s, bytes + taken,
           taken > 0 ? std::max(tail_s, work_.tail_s[l]) : tail_s);
    }
    left_[l] = all;
  }

  const Workload& work_;
  const CostPiece& line_;
  std::vector<std::uint64_t> left_;
  double best_s_ = 0;
};

// As ScheduleSearch, with a second lane behind the first.
class TwoStageSearch {
 public:
  TwoStageSearch(const Workload& work, const CostPiece& first, const CostPiece& second)
      : work_(work), first_(first), second_(second), left_(work.bytes) {
    const auto bytes = static_cast<double>(work.total_bytes());
    best_s_ = work.backward_s() + first.Seconds(bytes) + second.Seconds(bytes) + work.forward_s();
  }

  double Run() {
    Choose(0, 0, work_.backward_s() + work_.forward_s());
    return best_s_;
  }

 private:
  void Choose(double now, double second_free_s, double iteration_s) {
    if (iteration_s >= best_s_) return;
    if (std::all_of(left_.begin(), left_.end(), [](std::uint64_t left) { return left == 0; })) {
      best_s_ = iteration_s;
      return;
    }
    for (std::size_t l = left_.size(); l-- > 0;) {
      if (work_.release_s[l] > now) {
        Choose(work_.release_s[l], second_free_s, iteration_s);
        break;
      }
    }
    Fill(left_.size(), now, second_free_s, iteration_s, 0, 0);
  }

  void Fill(std::size_t tensor, double now, double second_free_s, double iteration_s,
            std::uint64_t bytes, double tail_s) {
    if (tensor == 0 || work_.release_s[tensor - 1] > now) {
      if (bytes == 0) return;
      const double summed_s = now + first_.Seconds(static_cast<double>(bytes));
      const double end_s =
          std::max(summed_s, second_free_s) + second_.Seconds(static_cast<double>(bytes));
      Choose(summed_s, end_s, std::max(iteration_s, end_s + tail_s));
      return;
    }
    const std::size_t l = tensor - 1;
    const std::uint64_t all = left_[l];
    for (std::uint64_t taken = 0; taken <= all; taken += work_.element_bytes) {
      left_[l] = all - taken;
      Fill(l, now, second_free_s, iteration_s, bytes + taken,
           taken > 0 ? std::max(tail_s, work_.tail_s[l]) : tail_s);
    }
    left_[l] = all;
  }

  const Workload& work_;
  const CostPiece& first_;
  const CostPiece& second_;
  std::vector<std::uint64_t> left_;
  double best_s_ = 0;
};

// As TwoStageSearch; from the second lane blocks return to the first.
class ThreeStageSearch {
 public:
  ThreeStageSearch(const Workload& work, const CostPiece& first, const CostPiece& second)
      : work_(work), first_(first), second_(second), left_(work.bytes) {
    const auto bytes = static_cast<double>(work.total_bytes());
    best_s_ =
        work.backward_s() + 2 * first.Seconds(bytes) + second.Seconds(bytes) + work.forward_s();
  }

  double Run() {
    Choose({.now = 0, .crossed_s = 0, .iteration_s = work_.backward_s() + work_.forward_s()}, 0);
    return best_s_;
  }

 private:
  struct Crossing {  // a block that is to return, by order
    double crossed_s = 0;
    double third_s = 0;
    double tail_s = 0;
  };
  struct State {
    double now = 0;        // the first lane is free
    double crossed_s = 0;  // so is the second
    double iteration_s = 0;
  };

  double LeastSeconds(const State& state, std::size_t returned) const {
    double least_s = state.iteration_s;
    for (std::size_t i = returned; i < crossing_.size(); ++i) {
      const double begin_s = std::max(state.now, crossing_[i].crossed_s);
      least_s = std::max(least_s, begin_s + crossing_[i].third_s + crossing_[i].tail_s);
    }
    for (std::size_t l = 0; l < left_.size(); ++l) {
      if (left_[l] == 0) continue;
      const double summed_s = std::max(state.now, work_.release_s[l]) + first_.startup_s;
      const double crossed_s =
          std::max(summed_s, state.crossed_s) + second_.Seconds(static_cast<double>(left_[l]));
      least_s = std::max(least_s, crossed_s + first_.startup_s + work_.tail_s[l]);
    }
    return least_s;
  }

  // `returned`: blocks that have passed all stages.
  void Choose(const State& state, std::size_t returned) {
    if (LeastSeconds(state, returned) >= best_s_) return;
    const bool none_left =
        std::all_of(left_.begin(), left_.end(), [](std::uint64_t left) { return left == 0; });
    if (none_left && returned == crossing_.size()) {
      best_s_ = state.iteration_s;
      return;
    }
    double next_s = std::numeric_limits<double>::infinity();  // something more can begin
    if (returned < crossing_.size()) {
      const Crossing& block = crossing_[returned];
      if (block.crossed_s <= state.now) {
        const double end_s = state.now + block.third_s;
        Choose({.now = end_s,
                .crossed_s = state.crossed_s,
                .iteration_s = std::max(state.iteration_s, end_s + block.tail_s)},
               returned + 1);
      } else {
        next_s = block.crossed_s;
      }
    }
    Fill(left_.size(), state, returned, 0, 0);
    for (const double release_s : work_.release_s) {
      if (release_s > state.now) next_s = std::min(next_s, release_s);
    }
    if (next_s < std::numeric_limits<double>::infinity()) {
      Choose({.now = next_s, .crossed_s = state.crossed_s, .iteration_s = state.iteration_s},
             returned);
    }
  }

  void Fill(std::size_t tensor, const State& state, std::size_t returned, std::uint64_t bytes,
            double tail_s) {
    if (tensor == 0 || work_.release_s[tensor - 1] > state.now) {
      if (bytes == 0) return;
      const double first_s = first_.Seconds(static_cast<double>(bytes));
      const double summed_s = state.now + first_s;
      const double crossed_s =
          std::max(summed_s, state.crossed_s) + second_.Seconds(static_cast<double>(bytes));
      crossing_.push_back({.crossed_s = crossed_s, .third_s = first_s, .tail_s = tail_s});
      Choose({.now = summed_s, .crossed_s = crossed_s, .iteration_s = state.iteration_s}, returned);
      crossing_.pop_back();
      return;
    }
    const std::size_t l = tensor - 1;
    const std::uint64_t all = left_[l];
    for (std::uint64_t taken = 0; taken <= all; taken += work_.element_bytes) {
      left_[l] = all - taken;
      Fill(l, state, returned, bytes + taken,
           taken > 0 ? std::max(tail_s, work_.tail_s[l]) : tail_s);
    }
    left_[l] = all;
  }

  const Workload& work_;
  const CostPiece& first_;
  const CostPiece& second_;
  std::vector<std::uint64_t> left_;
  std::vector<Crossing> crossing_;
  double best_s_ = 0;
};

// Whether some choice of cuts and groups reaches the trial time. fewest[k][j]: startups.
bool Reaches(const Workload& work, const CostPiece& line, double trial_s) {
  const std::size_t count = work.size();
  constexpr int kNone = std::numeric_limits<int>::max() / 2;
  std::vector<std::vector<int>> fewest(count, std::vector<int>(count, kNone));
  fewest[0][0] = 1;
  for (std::size_t l = 0; l < count; ++l) {
    for (std::size_t j = 0; j < l; ++j) {
      for (std::size_t k = 0; k < l; ++k) {
        if (work.release_s[k] - work.release_s[l] < line.startup_s) continue;
        fewest[l][j] = std::min(fewest[l][j], fewest[k][j] + 1);
      }
    }
    for (std::size_t k = 0; k <= l; ++k) {
      for (std::size_t j = 0; j < l; ++j) fewest[k][l] = std::min(fewest[k][l], fewest[k][j] + 1);
    }
    const double load_s = line.s_per_byte * static_cast<double>(work.prefix_bytes[l]);
    bool any = false;
    for (std::size_t k = 0; k <= l; ++k) {
      for (std::size_t j = 0; j <= l; ++j) {
        const double room_s =
            trial_s - work.release_s[k] - work.tail_s[j] - fewest[k][j] * line.startup_s;
        if (fewest[k][j] >= kNone || load_s > room_s * (1 + 1e-14)) fewest[k][j] = kNone;
        any = any || fewest[k][j] < kNone;
      }
    }
    if (!any) return false;
  }
  return true;
}

}  // namespace

double BruteForceCuts(const Workload& work, const CostPiece& line) {
  const std::uint32_t choices = std::uint32_t{1} << work.size();
  double best_s = std::numeric_limits<double>::infinity();
  for (std::uint32_t cuts = 0; cuts < choices; cuts += 2) {
    for (std::uint32_t groups = 0; groups < choices; groups += 2) {
      best_s = std::min(best_s, TimeOf(work, line, cuts, groups));
    }
  }
  return best_s;
}

double BruteForceSchedules(const Workload& work, const CostPiece& line) {
  return ScheduleSearch(work, line).Run();
}

double DynamicProgram(const Workload& work, const CostPiece& line) {
  double low_s = work.backward_s() + work.forward_s();
  double high_s =
      work.backward_s() + line.Seconds(static_cast<double>(work.total_bytes())) + work.forward_s();
  for (int step = 0; step < 60; ++step) {
    const double trial_s = low_s + (high_s - low_s) / 2;
    (Reaches(work, line, trial_s) ? high_s : low_s) = trial_s;
  }
  return high_s;
}

double BruteForceTwoStages(const Workload& work, const CostPiece& first, const CostPiece& second) {
  return TwoStageSearch(work, first, second).Run();
}

double BruteForceThreeStages(const Workload& work, const CostPiece& first,
                             const CostPiece& second) {
  return ThreeStageSearch(work, first, second).Run();
}

}  // namespace headrace::plan
