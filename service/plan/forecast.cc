#include "service/plan/forecast.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ipc/base/check.h"
#include "service/plan/coded.h"

namespace headrace::plan {
namespace {

// A time in which computing goes at one rate below 1.
struct Slow {
  double begin_s = 0;
  double end_s = 0;
  double rate = 1;
};

// Walks along the times at which something is under way, apart and in order, and says how long work
// takes. Asked for growing times only.
class Computing {
 public:
  explicit Computing(const std::vector<Slow>& slow) : slow_(slow) {}

  // When `work_s` that begins at `from_s` is done.
  double End(double from_s, double work_s) {
    double now = from_s;
    double left_s = work_s;
    while (left_s > 0) {
      while (at_ < slow_.size() && slow_[at_].end_s <= now) ++at_;
      if (at_ == slow_.size()) return now + left_s;
      const Slow& next = slow_[at_];
      const bool inside = next.begin_s <= now;
      const double until_s = inside ? next.end_s : next.begin_s;
      const double rate = inside ? next.rate : 1;
      const double done_s = (until_s - now) * rate;
      if (done_s >= left_s) return now + left_s / rate;
      left_s -= done_s;
      now = until_s;
    }
    return now;
  }

 private:
  const std::vector<Slow>& slow_;
  std::size_t at_ = 0;
};

LanePlace PlaceOf(const Stage& stage) {
  return stage.in_node ? LanePlace::kInNode : LanePlace::kBetweenNodes;
}

class Forecaster {
 public:
  Forecaster(const Workload& work, const Route& route, const Recording& recording,
             const Draft& draft)
      : work_(work), route_(route), draft_(draft), contention_(recording.contention) {
    share_ = contention_[PlaceIndex(PlaceOf(route.stages[0]))];
    serial_ = route.stages.size() == 1 && route.stages[0].rails.size() == 1;
    for (const DraftBlock& block : draft.blocks) {
      if (!serial_) break;
      costs_s_.push_back(
          BlockSeconds(route.stages[0], work, block.kind, draft.PartsOf(block), block.bytes));
    }
  }

  double Iteration(const RecordedIteration& recorded) {
    ready_s_.assign(work_.size(), 0);
    slow_.clear();
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
      done_s += idle_s + costs_s_[block] * (1 - share_);
      ready_s_[lowest] = std::max(ready_s_[lowest], free_s);
      AddSlow(begin_s, free_s, 1 - share_);
    }
  }

  void RunRoute(const RecordedIteration& recorded) {
    Workload work = work_;
    for (std::size_t l = 0; l < work.size(); ++l) work.release_s[l] = recorded.release_s[l];
    for (int round = 0; round < kSettlingMax; ++round) {
      const Timetable table = MakeTimetable(work, route_, draft_, spans_);
      std::ranges::fill(ready_s_, 0);
      MergeSpans();
      for (std::size_t block = 0; block < draft_.blocks.size(); ++block) {
        double& ready_s = ready_s_[draft_.blocks[block].lowest];
        ready_s = std::max(ready_s, table.end_s[block]);
      }
      if (SumOf(contention_) == 0 || !Settle(recorded, work.release_s)) break;
    }
  }

  // Releases as they are beside what is under way now; false when they are that already.
  bool Settle(const RecordedIteration& recorded, std::vector<double>& release_s) const {
    Computing computing(slow_);
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

  // The stages under way at each time, by place: a block that waits between two is in none.
  void MergeSpans() {
    struct Border {
      double at_s = 0;
      std::size_t place = 0;
      int more = 0;
    };
    std::vector<Border> borders;
    borders.reserve(2 * spans_.size());
    for (const StageSpan& span : spans_) {
      const std::size_t place = PlaceIndex(PlaceOf(route_.stages[span.stage]));
      borders.push_back({span.begin_s, place, 1});
      borders.push_back({span.end_s, place, -1});
    }
    std::ranges::stable_sort(borders, {}, &Border::at_s);
    slow_.clear();
    std::array<int, kLanePlaces> under_way{};
    double last_s = 0;
    for (const Border& border : borders) {
      double rate = 1;
      for (std::size_t place = 0; place < kLanePlaces; ++place) {
        if (under_way[place] > 0) rate -= contention_[place];
      }
      if (rate < 1) AddSlow(last_s, border.at_s, rate);
      under_way[border.place] += border.more;
      last_s = border.at_s;
    }
  }

  void AddSlow(double begin_s, double end_s, double rate) {
    if (!(end_s > begin_s)) return;
    if (!slow_.empty() && begin_s <= slow_.back().end_s && slow_.back().rate == rate) {
      slow_.back().end_s = std::max(slow_.back().end_s, end_s);
    } else {
      slow_.push_back({begin_s, end_s, rate});
    }
  }

  double Forward(const RecordedIteration& recorded) const {
    Computing computing(slow_);
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
  const ContentionShares contention_;
  double share_ = 0;  // of the first stage's lanes
  bool serial_ = false;
  std::vector<double> costs_s_;  // by block, on one lane
  std::vector<double> ready_s_;  // by tensor: the end of the last block of which it is the lowest
  std::vector<StageSpan> spans_;
  std::vector<Slow> slow_;  // when something was under way, apart and in order
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
