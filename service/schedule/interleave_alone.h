// Computes what an iteration of a job would be if the job had its lane alone, from measurements
// while it shares the lane. (pure)
//
// Backward passes do not wait for the lane, so the times at which blocks become ready, counted from
// the start of the backward pass, are the same as alone. The time of a block alone follows from its
// bytes. A forward pass waits for each of its gradients in turn, so the length of the iteration
// follows from the ends of the blocks.
//
// No clock, thread, allocation or log; times are seconds.
#pragma once

#include <cstdint>
#include <span>

#include "service/schedule/interleave.h"

namespace headrace::schedule {

// One block of the plan, in the order in which they begin.
struct AloneBlock {
  double ready_s = 0;  // after the begin of the backward pass
  double work_s = 0;   // on the lane, alone
  double end_s = 0;    // filled in
};

class AloneIteration {
 public:
  // All outlive it. `last_block`: for each gradient in forward order, the last of the blocks that
  // hold something of it. `forward_s`: what the forward pass computes for each. `compute_s`: all
  // that lies in an iteration besides waiting for gradients. `barrier`: the forward pass waits for
  // the last block.
  AloneIteration(std::span<AloneBlock> blocks, std::span<const std::uint32_t> last_block,
                 std::span<const double> forward_s, double compute_s, bool barrier);

  // From one backward pass's begin to the next one's, when the first block is held back for so long
  // after it is ready.
  double Period(double hold_s = 0);
  // When the lane is used in an iteration without a hold.
  Rhythm MakeRhythm();

  // How long the first block must be held once, for everything that follows to be `shift_s` later:
  // the forward pass waits for gradients, the next backward pass for the forward pass, and from
  // then on the iterations are as they were, only later. Where gradients come before they are
  // needed, the hold first eats that up, so it is longer than the shift. Negative when no hold of
  // less than `hold_max_s` does it.
  double HoldFor(double shift_s, double hold_max_s);

 private:
  void Move(double hold_s);

  std::span<AloneBlock> blocks_;
  std::span<const std::uint32_t> last_block_;
  std::span<const double> forward_s_;
  double forward_begin_s_ = 0;  // without waits
  bool barrier_;
};

}  // namespace headrace::schedule
