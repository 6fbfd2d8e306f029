#include "tests/unit/plan/beside.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/coded.h"

namespace headrace::plan {
namespace {

constexpr double kNeverS = std::numeric_limits<double>::infinity();

class Events {
 public:
  Events(const Workload& work, const Route& route, const Draft& draft,
         const RecordedIteration& recorded, double contention)
      : work_(work),
        route_(route),
        draft_(draft),
        recorded_(recorded),
        slow_rate_(1 - contention),
        blocks_(draft.blocks.size()),
        lane_used_(route.lanes.size(), false),
        unreleased_(work.size()),
        work_left_s_(static_cast<double>(recorded.release_s.back())) {}

  double Run() {
    while (forward_ < work_.size()) {
      while (Compute() || Complete() || Begin()) continue;
      if (forward_ < work_.size()) Advance();
    }
    return now_;
  }

 private:
  struct Moving {
    std::size_t stage = 0;  // that it is in, or comes to next
    bool in_stage = false;
    bool under_way = false;
    double end_s = 0;  // of the stage that it is in
  };

  bool Ended(std::size_t block) const { return blocks_[block].stage == route_.stages.size(); }

  // Tensor `l` may be used: every block that it is the lowest tensor of has ended.
  bool Usable(std::size_t l) const {
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      if (!Ended(block) && (draft_.barrier || draft_.blocks[block].lowest == l)) return false;
    }
    return true;
  }
  bool Computes() const { return !forward_begun_ || Usable(forward_); }
  double Rate() const {
    const bool beside = std::ranges::any_of(blocks_, &Moving::under_way);
    return beside ? slow_rate_ : 1;
  }

  // One step of computing that is done by now.
  bool Compute() {
    if (!Computes() || work_left_s_ > 0 || forward_ == work_.size()) return false;
    if (unreleased_ > 0) {
      --unreleased_;
      const double released_s = recorded_.release_s[unreleased_];
      const double next_s =
          unreleased_ > 0 ? recorded_.release_s[unreleased_ - 1] : recorded_.forward_begin_s;
      work_left_s_ = next_s - released_s;
    } else if (!forward_begun_) {
      forward_begun_ = true;
      work_left_s_ = recorded_.forward_s[0];
    } else if (++forward_ < work_.size()) {
      work_left_s_ = recorded_.forward_s[forward_];
    }
    return true;
  }

  // A block leaves the stage that it has passed by now.
  bool Complete() {
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      Moving& moving = blocks_[block];
      if (!moving.in_stage || moving.end_s > now_) continue;
      if (Passes(route_.stages[moving.stage], draft_.blocks[block].kind)) Use(moving.stage, false);
      moving.in_stage = false;
      ++moving.stage;
      if (Ended(block)) moving.under_way = false;
      return true;
    }
    return false;
  }

  // A block begins its next stage, the earliest that can.
  bool Begin() {
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      Moving& moving = blocks_[block];
      if (Ended(block) || moving.in_stage || !MayBegin(block)) continue;
      const Stage& stage = route_.stages[moving.stage];
      const DraftBlock& drafted = draft_.blocks[block];
      moving.in_stage = true;
      moving.end_s = now_;
      if (moving.stage == FirstStage(route_, drafted.kind)) moving.under_way = true;
      if (Passes(stage, drafted.kind)) {
        Use(moving.stage, true);
        moving.end_s +=
            BlockSeconds(stage, work_, drafted.kind, draft_.RangesOf(drafted), drafted.bytes);
      }
      return true;
    }
    return false;
  }

  bool MayBegin(std::size_t block) const {
    const std::size_t stage = blocks_[block].stage;
    const DraftBlock& drafted = draft_.blocks[block];
    const std::size_t limit = draft_.in_flight_max;
    if (stage == 0) {
      if (drafted.lowest < unreleased_) return false;
      if (limit > 0 && block >= limit && !Ended(block - limit)) return false;
    }
    for (std::size_t before = 0; before < block; ++before) {
      const Moving& moving = blocks_[before];
      if (moving.stage < stage || (moving.stage == stage && !moving.in_stage)) return false;
      const bool scatters = draft_.blocks[before].kind == Collective::kReduceScatter;
      if (drafted.kind == Collective::kAllGather && scatters && !Ended(before)) return false;
    }
    if (!Passes(route_.stages[stage], drafted.kind)) return true;
    return std::ranges::none_of(route_.stages[stage].rails,
                                [&](const Rail& rail) { return lane_used_[rail.lane]; });
  }

  void Use(std::size_t stage, bool used) {
    for (const Rail& rail : route_.stages[stage].rails) lane_used_[rail.lane] = used;
  }

  // To whatever happens next.
  void Advance() {
    double next_s = kNeverS;
    for (const Moving& moving : blocks_) {
      if (moving.in_stage) next_s = std::min(next_s, moving.end_s);
    }
    if (Computes()) {
      const double done_s = now_ + work_left_s_ / Rate();
      if (done_s <= next_s) {
        work_left_s_ = 0;
        next_s = done_s;
      } else {
        work_left_s_ = std::max(0.0, work_left_s_ - (next_s - now_) * Rate());
      }
    }
    HR_CHECK(next_s < kNeverS, forward_, unreleased_);
    now_ = next_s;
  }

  const Workload& work_;
  const Route& route_;
  const Draft& draft_;
  const RecordedIteration& recorded_;
  const double slow_rate_;
  std::vector<Moving> blocks_;
  std::vector<bool> lane_used_;
  std::size_t unreleased_;  // gradients; the last are released first
  bool forward_begun_ = false;
  std::size_t forward_ = 0;  // the tensor that the forward pass is at
  double work_left_s_;       // until the next gradient, the forward pass, or its next tensor
  double now_ = 0;
};

}  // namespace

double SecondsBeside(const Workload& work, const Route& route, const Draft& draft,
                     const RecordedIteration& recorded, double contention) {
  return Events(work, route, draft, recorded, contention).Run();
}

double MeanSecondsBeside(const Workload& work, const Route& route, const Draft& draft,
                         const Recording& recording) {
  double sum_s = 0;
  for (const RecordedIteration& each : recording.iterations) {
    sum_s += SecondsBeside(work, route, draft, each, recording.contention);
  }
  return sum_s / static_cast<double>(recording.iterations.size());
}

}  // namespace headrace::plan
