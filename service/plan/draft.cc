#include "service/plan/draft.h"

#include <algorithm>
#include <array>

#include "ipc/base/check.h"
#include "service/plan/coded.h"
#include "service/plan/infinity.h"

namespace headrace::plan {
namespace {

// Fills in a timetable by always taking the block stage that can begin first.
class Clerk {
 public:
  Clerk(const Workload& work, const Route& route, const Draft& draft)
      : work_(work), route_(route), draft_(draft) {
    HR_CHECK(!route.stages.empty() && route.stages.size() <= kStagesMax &&
                 route.lanes.size() <= kLanesMax,
             route.stages.size(), route.lanes.size());
    std::size_t scatters = 0;  // blocks up to the last reduce-scatter
    for (const DraftBlock& block : draft.blocks) {
      HR_CHECK(block.bytes > 0 && block.lowest < work.size(), block.bytes, block.lowest);
      after_scatters_.push_back(block.kind == Collective::kAllGather ? scatters : 0);
      if (block.kind == Collective::kReduceScatter) scatters = after_scatters_.size();
    }
  }

  Timetable Fill() {
    table_.begin_s.resize(draft_.blocks.size());
    table_.end_s.assign(draft_.blocks.size(), 0);
    const std::size_t stages = route_.stages.size();
    for (std::size_t left = draft_.blocks.size() * stages; left > 0; --left) {
      std::size_t best = stages;
      double best_s = kInfinity;
      for (std::size_t stage = 0; stage < stages; ++stage) {
        const double begin_s = CanBegin(stage);
        // Later stages hold earlier blocks, which go first where both could begin now.
        if (begin_s <= best_s && begin_s < kInfinity) {
          best = stage;
          best_s = begin_s;
        }
      }
      HR_CHECK(best < stages, left);
      Run(best, best_s);
    }
    for (std::size_t stage = 0; stage < stages; ++stage) {
      HR_CHECK(next_[stage] == draft_.blocks.size(), stage, next_[stage]);
    }
    table_.iteration_s = Iteration();
    return std::move(table_);
  }

 private:
  // When the next block of a stage could begin; infinity when it still is in an earlier stage.
  double CanBegin(std::size_t stage) const {
    const std::size_t block = next_[stage];
    if (block == draft_.blocks.size()) return kInfinity;
    double begin_s = 0;
    if (stage > 0) {
      if (next_[stage - 1] <= block) return kInfinity;
      begin_s = table_.end_s[block];
    } else {
      begin_s = work_.release_s[draft_.blocks[block].lowest];
      const std::uint32_t limit = draft_.in_flight_max;
      if (limit > 0 && block >= limit) {
        if (next_[route_.stages.size() - 1] <= block - limit) return kInfinity;
        begin_s = std::max(begin_s, table_.end_s[block - limit]);
      }
      if (next_[route_.stages.size() - 1] < after_scatters_[block]) return kInfinity;
      if (after_scatters_[block] > 0) begin_s = std::max(begin_s, scattered_s_);
    }
    if (!Passes(route_.stages[stage], draft_.blocks[block].kind)) return begin_s;
    for (const Rail& rail : route_.stages[stage].rails) {
      begin_s = std::max(begin_s, free_s_[rail.lane]);
    }
    return begin_s;
  }

  // end_s holds the end of the last stage that ran, until the block has passed them all.
  void Run(std::size_t stage, double begin_s) {
    const std::size_t block = next_[stage]++;
    const DraftBlock& moved = draft_.blocks[block];
    if (stage == FirstStage(route_, moved.kind)) table_.begin_s[block] = begin_s;
    const bool passes = Passes(route_.stages[stage], moved.kind);
    const double end_s = passes ? begin_s + BlockSeconds(route_.stages[stage], work_, moved.kind,
                                                         draft_.RangesOf(moved), moved.bytes)
                                : begin_s;
    table_.end_s[block] = end_s;
    const bool ends = stage + 1 == route_.stages.size();
    if (ends && moved.kind == Collective::kReduceScatter) {
      scattered_s_ = std::max(scattered_s_, end_s);
    }
    if (!passes) return;
    for (const Rail& rail : route_.stages[stage].rails) free_s_[rail.lane] = end_s;
  }

  double Iteration() const {
    if (draft_.barrier) {
      double last_s = work_.backward_s();
      for (const double end_s : table_.end_s) last_s = std::max(last_s, end_s);
      return last_s + work_.forward_s();
    }
    // The lowest tensor of a block is needed first, so it alone decides.
    double iteration_s = work_.backward_s() + work_.forward_s();
    for (std::size_t block = 0; block < draft_.blocks.size(); ++block) {
      iteration_s =
          std::max(iteration_s, table_.end_s[block] + work_.tail_s[draft_.blocks[block].lowest]);
    }
    return iteration_s;
  }

  const Workload& work_;
  const Route& route_;
  const Draft& draft_;
  Timetable table_;
  std::array<std::size_t, kStagesMax> next_{};
  std::array<double, kLanesMax> free_s_{};
  std::vector<std::size_t> after_scatters_;  // per block: blocks that must have ended before it
  double scattered_s_ = 0;                   // when the last reduce-scatter so far ended
};

}  // namespace

std::span<const TensorRange> Draft::RangesOf(const DraftBlock& block) const {
  HR_CHECK(block.ranges_begin <= block.ranges_end && block.ranges_end <= ranges.size(),
           block.ranges_begin, block.ranges_end, ranges.size());
  return std::span(ranges).subspan(block.ranges_begin, block.ranges_end - block.ranges_begin);
}

bool Draft::HasHalves() const {
  return std::ranges::any_of(blocks, [](const DraftBlock& block) { return IsHalf(block.kind); });
}

void Draft::Open(Collective kind) {
  HR_CHECK(ranges.size() < UINT32_MAX, ranges.size());
  const auto at = static_cast<std::uint32_t>(ranges.size());
  blocks.push_back({at, at, UINT32_MAX, 0, kind});
}

void Draft::Append(std::uint32_t tensor, std::uint64_t offset_bytes, std::uint64_t bytes) {
  if (bytes == 0) return;
  HR_CHECK(!blocks.empty() && blocks.back().ranges_end == ranges.size(), tensor, ranges.size());
  DraftBlock& block = blocks.back();
  const bool grows = block.ranges_end > block.ranges_begin && ranges.back().tensor == tensor &&
                     ranges.back().offset_bytes + ranges.back().bytes == offset_bytes;
  if (grows) {
    ranges.back().bytes += bytes;
  } else {
    ranges.push_back({tensor, offset_bytes, bytes});
    ++block.ranges_end;
  }
  block.lowest = std::min(block.lowest, tensor);
  block.bytes += bytes;
}

void Draft::Close() {
  HR_CHECK(!blocks.empty());
  if (blocks.back().bytes == 0) blocks.pop_back();
}

Draft WithWholeMatrices(const Workload& work, const Draft& draft) {
  const bool has_any = std::ranges::any_of(
      work.codecs, [](const Codec& codec) { return codec.kind == Codec::kPowerSgd; });
  if (!has_any) return draft;
  const auto border = [&work](std::uint32_t tensor, std::uint64_t bytes) -> std::uint64_t {
    if (work.codecs[tensor].kind != Codec::kPowerSgd) return bytes;
    return 2 * bytes < work.bytes[tensor] ? 0 : work.bytes[tensor];
  };
  Draft whole;
  whole.barrier = draft.barrier;
  whole.in_flight_max = draft.in_flight_max;
  for (const DraftBlock& block : draft.blocks) {
    whole.Open(block.kind);
    for (const TensorRange& range : draft.RangesOf(block)) {
      const std::uint64_t begin = border(range.tensor, range.offset_bytes);
      const std::uint64_t end = border(range.tensor, range.offset_bytes + range.bytes);
      whole.Append(range.tensor, begin, end - begin);
    }
    whole.Close();
  }
  return whole;
}

Timetable MakeTimetable(const Workload& work, const Route& route, const Draft& draft) {
  return Clerk(work, route, draft).Fill();
}

void FastestDraft::Offer(Draft draft) {
  const double seconds = MakeTimetable(work_, route_, draft).iteration_s;
  if (seconds >= best_s_) return;
  best_s_ = seconds;
  best_ = std::move(draft);
}

Draft FastestDraft::Release() && {
  HR_CHECK(best_s_ < std::numeric_limits<double>::infinity(), work_.size());
  return std::move(best_);
}

}  // namespace headrace::plan
