#include "transport/runs.h"

#include <algorithm>

#include "ipc/base/check.h"
#include "ipc/base/halves.h"

namespace headrace::transport {

RunWalk::RunWalk(DType dtype, std::uint64_t count, std::span<const Run> runs, std::uint64_t skip)
    : runs_(runs), skip_(skip), count_(count), element_size_(SizeOf(dtype)) {
  if (runs_.empty()) {
    stretch_.end = count_;
  } else {
    Enter();
  }
}

void RunWalk::Next() {
  stretch_.begin = stretch_.end;
  if (runs_.empty()) return;
  runs_ = runs_.subspan(1);
  skip_ = 0;
  Enter();
}

// Goes on to the first run that holds the element stretch_.begin, if there is such an element.
void RunWalk::Enter() {
  if (stretch_.begin == count_) return;
  while (!runs_.empty() && runs_.front().count <= skip_) {
    skip_ -= runs_.front().count;
    runs_ = runs_.subspan(1);
  }
  HR_CHECK(!runs_.empty(), "the runs are shorter than the transfer", stretch_.begin, count_);
  const Run& run = runs_.front();
  stretch_.end = stretch_.begin + std::min(count_ - stretch_.begin, run.count - skip_);
  stretch_.offset = run.offset + skip_ * element_size_;
}

namespace {

void CheckLongEnough(const Transfer& transfer, std::span<const Run> runs, std::uint64_t skip) {
  HR_CHECK(runs.size() <= kRunsMax, runs.size());
  std::uint64_t left = transfer.count;
  for (const Run& run : runs) {
    HR_CHECK(run.offset % SizeOf(transfer.dtype) == 0, run.offset);
    const std::uint64_t skipped = std::min(skip, run.count);
    skip -= skipped;
    left -= std::min(left, run.count - skipped);
  }
  HR_CHECK(left == 0 && skip == 0, "the runs are shorter than the transfer", left, skip);
}

void CheckOutputs(const Transfer& transfer) {
  bool any = false;
  bool host = false;
  bool device = false;
  for (std::uint32_t member = 0; member < transfer.members_count; ++member) {
    any = any || transfer.outputs[member] != nullptr;
    (transfer.devices[member] == kHost ? host : device) = true;
  }
  const bool may_have = transfer.kind == Collective::kReduceScatter && transfer.group == 0;
  HR_CHECK(!any || may_have, static_cast<int>(transfer.kind), transfer.group);
  HR_CHECK(!any || !(host && device), "outputs of host and GPU members", transfer.token);
}

}  // namespace

void CheckMemory(const Transfer& transfer) {
  CheckOutputs(transfer);
  if (transfer.residual_runs.empty()) {
    HR_CHECK(transfer.residual_skip == 0, transfer.residual_skip);
  } else {
    HR_CHECK(transfer.residual != nullptr && transfer.runs.empty(), transfer.runs.size());
    CheckLongEnough(transfer, transfer.residual_runs, transfer.residual_skip);
  }
  if (transfer.runs.empty()) {
    HR_CHECK(transfer.skip == 0, transfer.skip);
    return;
  }
  const bool is_half_between_nodes = IsHalf(transfer.kind) && transfer.group != 0;
  HR_CHECK(transfer.kind == Collective::kAllReduce || transfer.kind == Collective::kReduce ||
               transfer.kind == Collective::kBroadcast || is_half_between_nodes,
           static_cast<int>(transfer.kind));
  CheckLongEnough(transfer, transfer.runs, transfer.skip);
}

}  // namespace headrace::transport
