#include "service/plan/bytescheduler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "ipc/base/check.h"
#include "service/plan/infinity.h"
#include "service/plan/ready_set.h"

namespace headrace::plan {
namespace {

constexpr std::uint64_t kSmallestPartition = 64 << 10;
constexpr std::uint64_t kPartitionsMax = 4096;  // per iteration
constexpr std::array<std::uint32_t, 4> kCredits = {1, 2, 4, 8};
constexpr int kRefinements = 3;
constexpr double kFineStep = 1.25;  // between partition sizes
constexpr double kCoarseStep = 2.0;

// Runs one iteration: partitions enter the route one by one, each chosen when a credit is free.
class Dispatcher {
 public:
  Dispatcher(const Workload& work, const Route& route, const ByteSchedulerTuning& tuning)
      : work_(work), route_(route), tuning_(tuning), ready_(work.size()), sent_(work.size(), 0) {}

  Draft Run() {
    draft_.in_flight_max = tuning_.credits;
    unreleased_ = static_cast<std::uint32_t>(work_.size());
    const auto none = static_cast<std::uint32_t>(work_.size());
    double now = 0;
    while (true) {
      Release(now);
      const std::uint32_t tensor = ready_.First(none);
      if (tensor == none) {
        if (unreleased_ == 0) break;
        now = work_.release_s[unreleased_ - 1];
        continue;
      }
      now = Send(tensor, now);
    }
    return std::move(draft_);
  }

 private:
  void Release(double now) {
    while (unreleased_ > 0 && work_.release_s[unreleased_ - 1] <= now) ready_.Insert(--unreleased_);
  }

  // Sends the next partition of a tensor; returns when the next choice is made. On a route of one
  // stage the lane is then free again, or there is a credit left to queue behind it.
  double Send(std::uint32_t tensor, double now) {
    const std::uint64_t bytes =
        std::min(tuning_.partition_bytes, work_.bytes[tensor] - sent_[tensor]);
    HR_CHECK(bytes > 0, tensor, sent_[tensor]);
    draft_.Open();
    draft_.Append(tensor, sent_[tensor], bytes);
    sent_[tensor] += bytes;
    if (sent_[tensor] == work_.bytes[tensor]) ready_.Erase(tensor);
    double end_s = now;
    for (const Stage& stage : route_.stages) {
      const std::uint32_t lane = stage.rails.front().lane;
      end_s = std::max(end_s, free_s_[lane]) + StageSeconds(stage, bytes, work_.element_bytes);
      free_s_[lane] = end_s;
    }
    ends_s_.push_back(end_s);
    if (ends_s_.size() < tuning_.credits) return now;
    return std::max(now, ends_s_[ends_s_.size() - tuning_.credits]);
  }

  const Workload& work_;
  const Route& route_;
  const ByteSchedulerTuning tuning_;
  ReadySet ready_;
  std::vector<std::uint64_t> sent_;
  std::vector<double> ends_s_;
  std::array<double, kLanesMax> free_s_{};
  std::uint32_t unreleased_ = 0;  // tensors below this index are not ready yet
  Draft draft_;
};

struct Tuned {
  ByteSchedulerTuning tuning;
  double iteration_s = kInfinity;
};

void Try(const Workload& work, const Route& route, const ByteSchedulerTuning& tuning, Tuned& best) {
  const Draft draft = ByteScheduler(work, route, tuning);
  const double seconds = MakeTimetable(work, route, draft).iteration_s;
  if (seconds < best.iteration_s) best = {tuning, seconds};
}

}  // namespace

PartitionBounds BoundsOf(const Workload& work) {
  const std::uint64_t largest = *std::max_element(work.bytes.begin(), work.bytes.end());
  return {.smallest = std::max(std::min(kSmallestPartition, largest / 64 + 1),
                               work.total_bytes() / kPartitionsMax),
          .largest = largest};
}

std::uint64_t WholeElements(double bytes, std::uint64_t element_bytes) {
  const double elements = std::ceil(bytes / static_cast<double>(element_bytes));
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(elements)) * element_bytes;
}

Draft ByteScheduler(const Workload& work, const Route& route, const ByteSchedulerTuning& tuning) {
  HR_CHECK(tuning.credits > 0 && tuning.partition_bytes > 0, tuning.partition_bytes);
  return Dispatcher(work, route, tuning).Run();
}

const PolicyTraits kByteSchedulerTraits = {
    .barrier = false, .sizes_by_cost = true, .halves = false, .from_others = false};

Draft ByteScheduler(const Workload& work, const Route& route, const DraftOptions& options) {
  return ByteScheduler(work, route, TuneByteScheduler(work, route, options.settings));
}

ByteSchedulerTuning TuneByteScheduler(const Workload& work, const Route& route,
                                      const PolicySettings& settings) {
  const auto [smallest, largest] = BoundsOf(work);
  HR_CHECK(smallest > 0 && largest > 0);
  // On a single stage a second credit only takes choices earlier, so it is not tried there.
  const std::uint32_t given = settings.credits;
  const std::span<const std::uint32_t> credits = given > 0 ? std::span(&given, 1)
                                                 : route.stages.size() == 1
                                                     ? std::span(kCredits).first(1)
                                                     : std::span(kCredits);
  Tuned best;
  const auto try_all = [&](std::uint64_t bytes) {
    for (const std::uint32_t count : credits) Try(work, route, {bytes, count}, best);
  };
  if (settings.unit_bytes > 0) {
    try_all(settings.unit_bytes);
    return best.tuning;
  }
  // From large to small: of sizes that are equally good the largest makes the fewest blocks.
  const auto scan = [&](double from, double to, double factor) {
    for (double size = to; size * factor > from; size /= factor) {
      try_all(WholeElements(std::max(size, from), work.element_bytes));
    }
  };
  // A grid over credits too is coarser, as it has four times the points.
  double factor = credits.size() == 1 ? kFineStep : kCoarseStep;
  scan(static_cast<double>(smallest), static_cast<double>(largest), factor);
  for (int round = 0; round < kRefinements; ++round) {
    const auto centre = static_cast<double>(best.tuning.partition_bytes);
    const double step = std::sqrt(factor);
    for (const double size : {centre / step, centre * step}) {
      const std::uint64_t bytes = WholeElements(
          std::clamp(size, static_cast<double>(smallest), static_cast<double>(largest)),
          work.element_bytes);
      Try(work, route, {bytes, best.tuning.credits}, best);
    }
    factor = step;
  }
  return best.tuning;
}

}  // namespace headrace::plan
