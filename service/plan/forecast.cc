#include "service/plan/forecast.h"

#include <algorithm>
#include <cmath>

#include "ipc/base/check.h"
#include "service/plan/coded.h"

namespace headrace::plan {
namespace {

// A time at which computing has done some work, both since the begin of the backward pass.
struct Busy {
  double begin_s = 0;
  double end_s = 0;
};

// Walks along the times at which something is under way, and says how long work takes. Asked for
// growing times only.
class Computing {
 public:
  Computing(const std::vector<Busy>& busy, double contention)
      : busy_(busy), rate_(1 - contention) {}

  // When `work_s` that begins at `from_s` is done.
  double End(double from_s, double work_s) {
    double now = from_s;
    double left_s = work_s;
    while (left_s > 0) {
      while (at_ < busy_.size() && busy_[at_].end_s <= now) ++at_;
      if (at_ == busy_.size()) return now + left_s;
      const Busy& next = busy_[at_];
      const bool slow = next.begin_s <= now;
      const double until_s = slow ? next.end_s : next.begin_s;
      const double rate = slow ? rate_ : 1;
      const double done_s = (until_s - now) * rate;
      if (done_s >= left_s) return now + left_s / rate;
      left_s -= done_s;
      now = until_s;
    }
    return now;
  }

 private:
  const std::vector<Busy>& busy_;
  const double rate_;
  std::size_t at_ = 0;
};

class Forecaster {
 public:
  Forecaster(const Workload& work, const Route& route, const Recording& recording,
             const Draft& draft)
      : work_(work), route_(route), draft_(draft), contention_(recording.contention) {
    serial_ = route.stages.size() == 1 && route.stages[0].rails.size() == 1;
    for (const DraftBlock& block : draft.blocks) {
      if (!serial_) break;
      costs_s_.push_back(
          BlockSeconds(route.stages[0], work, block.kind, draft.RangesOf(block), block.bytes));
    }
  }

  double Iteration(const RecordedIteration& recorded) {
    ready_s_.assign(work_.size(), 0);
    busy_.clear();
    if (serial_) {
      RunLane(recorded);
    } else {
      RunRoute(recorded);
    }
    if (draft_.barrier) {
      ready_s_[0] = *std::max_element(ready_s_.begin(), ready_s_.end());
    }
    return Forward(recorded);
  }

 private:
  // Blocks go one after the other, so how far computing has come when one ends says when the next
  // one is released.
  void RunLane(const RecordedIteration& recorded) {
    double free_s = 0;
    double done_s = 0;  // work, when the lane falls free
    for (std::size_t block = 0; block < draft_.blocks.size(); ++block) {
      const std::uint32_t lowest = draft_.blocks[block].lowest;
      const double idle_s = std::max(0.0, recorded.release_s[lowest] - done_s);
      const double begin_s = free_s + idle_s;
      free_s = begin_s + costs_s_[block];
      done_s += idle_s + costs_s_[block] * (1 - contention_);
      ready_s_[lowest] = std::max(ready_s_[lowest], free_s);
      AddBusy(begin_s, free_s);
    }
  }

  void RunRoute(const RecordedIteration& recorded) {
    Workload work = work_;
    for (std::size_t l = 0; l < work.size(); ++l) work.release_s[l] = recorded.release_s[l];
    for (int round = 0; round < kSettlingMax; ++round) {
      const Timetable table = MakeTimetable(work, route_, draft_);
      std::ranges::fill(ready_s_, 0);
      MergeBusy(table);
      for (std::size_t block = 0; block < draft_.blocks.size(); ++block) {
        double& ready_s = ready_s_[draft_.blocks[block].lowest];
        ready_s = std::max(ready_s, table.end_s[block]);
      }
      if (contention_ == 0 || !Slow(recorded, work.release_s)) break;
    }
  }

  // Releases as they are beside what is under way now; false when they are that already.
  bool Slow(const RecordedIteration& recorded, std::vector<double>& release_s) const {
    Computing computing(busy_, contention_);
    bool moved = false;
    double now = 0;
    double done_s = 0;
    for (std::size_t l = release_s.size(); l-- > 0;) {
      now = computing.End(now, recorded.release_s[l] - done_s);
      done_s = recorded.release_s[l];
      moved = moved || std::abs(now - release_s[l]) > kSettled;
      release_s[l] = now;
    }
    return moved;
  }

  void MergeBusy(const Timetable& table) {
    std::vector<Busy> all;
    for (std::size_t block = 0; block < draft_.blocks.size(); ++block) {
      all.push_back({table.begin_s[block], table.end_s[block]});
    }
    std::ranges::sort(all, {}, &Busy::begin_s);
    busy_.clear();
    for (const Busy& each : all) AddBusy(each.begin_s, each.end_s);
  }

  void AddBusy(double begin_s, double end_s) {
    if (!busy_.empty() && begin_s <= busy_.back().end_s) {
      busy_.back().end_s = std::max(busy_.back().end_s, end_s);
    } else {
      busy_.push_back({begin_s, end_s});
    }
  }

  double Forward(const RecordedIteration& recorded) const {
    Computing computing(busy_, contention_);
    double now = computing.End(0, recorded.forward_begin_s);
    for (std::size_t l = 0; l < work_.size(); ++l) {
      now = computing.End(std::max(now, ready_s_[l]), recorded.forward_s[l]);
    }
    return now;
  }

  static constexpr double kSettled = 1e-6;  // seconds

  const Workload& work_;
  const Route& route_;
  const Draft& draft_;
  const double contention_;
  bool serial_ = false;
  std::vector<double> costs_s_;  // by block, on one lane
  std::vector<double> ready_s_;  // by tensor: the end of the last block of which it is the lowest
  std::vector<Busy> busy_;       // when something was under way, apart and in order
};

}  // namespace

std::vector<double> ForecastEach(const Workload& work, const Route& route,
                                 const Recording& recording, const Draft& draft) {
  Forecaster forecaster(work, route, recording, draft);
  std::vector<double> each_s;
  each_s.reserve(recording.iterations.size());
  for (const RecordedIteration& recorded : recording.iterations) {
    HR_CHECK(recorded.release_s.size() == work.size(), recorded.release_s.size(), work.size());
    each_s.push_back(forecaster.Iteration(recorded));
  }
  return each_s;
}

Forecast ForecastOf(const Workload& work, const Route& route, const Recording& recording,
                    const Draft& draft) {
  std::vector<double> each_s = ForecastEach(work, route, recording, draft);
  HR_CHECK(!each_s.empty());
  double sum_s = 0;
  for (const double seconds : each_s) sum_s += seconds;
  const auto count = static_cast<double>(each_s.size());
  const auto ninth = each_s.begin() + static_cast<std::ptrdiff_t>(std::ceil(0.9 * count)) - 1;
  std::nth_element(each_s.begin(), ninth, each_s.end());
  return {.mean_s = sum_s / count, .p90_s = *ninth};
}

}  // namespace headrace::plan
