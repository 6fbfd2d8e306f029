// Where the elements of a transfer lie when its memory consists of several runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/transport.h"

namespace headrace::transport {

// Elements [begin, end) of a transfer, one behind the other in memory.
struct Stretch {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;  // of element `begin`, in bytes behind the member's pointer
};

// A walk over the stretches of a transfer, from its first element to its last. Stretches are never
// empty, so the walk over a transfer of nothing is over before it begins. A value of a few words,
// whoever makes it; the runs are the transfer's and must outlive it.
class RunWalk {
 public:
  RunWalk() = default;
  explicit RunWalk(const Transfer& transfer)
      : RunWalk(transfer.dtype, transfer.count, transfer.runs, transfer.skip) {}
  RunWalk(DType dtype, std::uint64_t count, std::span<const Run> runs, std::uint64_t skip);

  bool over() const { return stretch_.begin == stretch_.end; }
  const Stretch& stretch() const { return stretch_; }
  // Where an element of the stretch lies, in bytes behind the member's pointer.
  std::uint64_t OffsetOf(std::uint64_t element) const {
    return stretch_.offset + (element - stretch_.begin) * element_size_;
  }
  void Next();
  // On to the stretch that holds the element, or to the end where there is none.
  void Seek(std::uint64_t element) {
    while (!over() && stretch_.end <= element) Next();
  }

 private:
  void Enter();

  std::span<const Run> runs_;  // from the one that holds the stretch on; empty without runs
  std::uint64_t skip_ = 0;     // elements of runs_.front() before the stretch
  std::uint64_t count_ = 0;
  std::uint64_t element_size_ = 1;
  Stretch stretch_;
};

// Over the residual of a transfer.
inline RunWalk ResidualWalk(const Transfer& transfer) {
  if (transfer.residual_runs.empty()) return RunWalk(transfer);
  return {transfer.dtype, transfer.count, transfer.residual_runs, transfer.residual_skip};
}

// Calls `visit(element, offset, count)` for what lies in one piece of the elements [begin, end):
// `count` elements from `element` on, `offset` bytes behind the member's pointer. `walk` is
// anywhere before the end of the stretch that holds `begin`.
template <typename Visit>
void ForEachStretch(RunWalk walk, std::uint64_t begin, std::uint64_t end, Visit visit) {
  for (walk.Seek(begin); !walk.over() && begin < end; walk.Next()) {
    const std::uint64_t count = std::min(end, walk.stretch().end) - begin;
    visit(begin, walk.OffsetOf(begin), count);
    begin += count;
  }
}

// What a caller owes a transport: runs only where a kind may have them, aligned to the element, and
// long enough, and outputs only where a kind may have them. Aborts on anything else.
void CheckMemory(const Transfer& transfer);

}  // namespace headrace::transport
