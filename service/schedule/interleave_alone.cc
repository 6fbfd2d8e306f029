#include "service/schedule/interleave_alone.h"

#include <algorithm>
#include <numeric>

#include "ipc/base/check.h"

namespace headrace::schedule {

AloneIteration::AloneIteration(std::span<AloneBlock> blocks,
                               std::span<const std::uint32_t> last_block,
                               std::span<const double> forward_s, double compute_s, bool barrier)
    : blocks_(blocks), last_block_(last_block), forward_s_(forward_s), barrier_(barrier) {
  HR_CHECK(!blocks.empty() && last_block.size() == forward_s.size(), blocks.size());
  const double forward = std::accumulate(forward_s.begin(), forward_s.end(), 0.0);
  forward_begin_s_ = std::max(0.0, compute_s - forward);
}

void AloneIteration::Move(double hold_s) {
  double free_s = blocks_.front().ready_s + hold_s;
  for (AloneBlock& block : blocks_) {
    block.end_s = std::max(free_s, block.ready_s) + block.work_s;
    free_s = block.end_s;
  }
}

double AloneIteration::Period(double hold_s) {
  Move(hold_s);
  double now_s = forward_begin_s_;
  for (std::size_t i = 0; i < forward_s_.size(); ++i) {
    const std::size_t block = barrier_ ? blocks_.size() - 1 : last_block_[i];
    now_s = std::max(now_s, blocks_[block].end_s) + forward_s_[i];
  }
  return now_s;
}

Rhythm AloneIteration::MakeRhythm() {
  Rhythm rhythm;
  rhythm.period_s = Period();
  for (const AloneBlock& block : blocks_) {
    // As Move has it, whatever rounding makes of the difference.
    const double before_s = rhythm.uses().empty() ? 0 : rhythm.uses().back().end_s();
    rhythm.AddUse(std::max(before_s, block.end_s - block.work_s), block.end_s);
  }
  return rhythm;
}

double AloneIteration::HoldFor(double shift_s, double hold_max_s) {
  const double wanted_s = Period() + shift_s;
  if (shift_s <= 0) return 0;
  // The period never falls as the hold grows, and grows by no more than the hold.
  double low_s = shift_s;
  double high_s = hold_max_s;
  if (low_s > high_s || Period(high_s) < wanted_s) return -1;
  constexpr int kHalvings = 30;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle_s = (low_s + high_s) / 2;
    (Period(middle_s) < wanted_s ? low_s : high_s) = middle_s;
  }
  return high_s;
}

}  // namespace headrace::schedule
