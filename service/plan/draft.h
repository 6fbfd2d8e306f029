// A draft: blocks and their order before times are put to them, and the timetable that does so.
//
// Policies and their searches work on drafts, thousands of them, so a draft is flat and small. A
// timetable is the plan's own prediction; it follows these rules:
//   - the first stage of blocks runs in draft order, each when its lanes are free and its last
//     gradient is ready (and, where in_flight_max is set, when so many blocks have not ended);
//   - a later stage begins when the stage before it ended and its lanes are free; of two that wait
//     for one lane, the earlier block goes first;
//   - an all-gather begins when every reduce-scatter before it in the draft has ended;
//   - with a barrier the forward pass waits for the last block, else each tensor for its own.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "ipc/base/halves.h"
#include "service/plan/route.h"
#include "service/plan/tensor_range.h"
#include "service/plan/workload.h"

namespace headrace::plan {

struct DraftBlock {
  std::uint32_t ranges_begin = 0;  // into Draft::ranges
  std::uint32_t ranges_end = 0;
  std::uint32_t lowest = 0;  // the lowest tensor inside: released last, needed first
  std::uint64_t bytes = 0;
  // All of an all-reduce; or one half, a reduce-scatter or an all-gather. Two blocks then carry the
  // same bytes, the reduce-scatter first.
  Collective kind = Collective::kAllReduce;
};

struct Draft {
  std::vector<TensorRange> ranges;
  std::vector<DraftBlock> blocks;
  bool barrier = false;
  std::uint32_t in_flight_max = 0;  // blocks begun and not ended; 0 = no limit

  std::span<const TensorRange> RangesOf(const DraftBlock& block) const;
  bool HasHalves() const;
  // Opens an empty block, adds bytes to the last block, drops the last block if it stayed empty.
  void Open(Collective kind = Collective::kAllReduce);
  void Append(std::uint32_t tensor, std::uint64_t offset_bytes, std::uint64_t bytes);
  void Close();
};

struct Timetable {
  std::vector<double> begin_s;  // first stage of each block
  std::vector<double> end_s;    // last stage of each block
  double iteration_s = 0;
};

// The draft with every matrix that crosses as factors in one block: each of its borders inside goes
// to the nearer end of the matrix. Blocks of which nothing is left are gone.
Draft WithWholeMatrices(const Workload& work, const Draft& draft);

Timetable MakeTimetable(const Workload& work, const Route& route, const Draft& draft);

// Keeps the fastest of several drafts; of equally fast ones the first.
class FastestDraft {
 public:
  // Both must outlive this.
  FastestDraft(const Workload& work, const Route& route) : work_(work), route_(route) {}

  void Offer(Draft draft);
  // At least one was offered.
  Draft Release() &&;

 private:
  const Workload& work_;
  const Route& route_;
  Draft best_;
  double best_s_ = std::numeric_limits<double>::infinity();
};

}  // namespace headrace::plan
