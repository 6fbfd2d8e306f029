#include "service/plan/plan.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::plan {
namespace {

Error Refuse(const std::string& what) { return {Code::kInvalidArgument, "plan: " + what}; }

Status CheckBlock(const PlannedBlock& block, std::size_t index, const Workload& work) {
  const std::string name = "block " + std::to_string(index);
  std::uint64_t bytes = 0;
  for (const TensorRange& range : block.ranges) {
    if (range.tensor >= work.size()) return Refuse(name + " names an unknown tensor");
    const std::uint64_t size = work.bytes[range.tensor];
    if (range.bytes == 0 || range.offset_bytes > size || range.bytes > size - range.offset_bytes) {
      return Refuse(name + " has a range outside tensor " + std::to_string(range.tensor));
    }
    if (range.bytes % work.element_bytes != 0 || range.offset_bytes % work.element_bytes != 0) {
      return Refuse(name + " cuts an element of tensor " + std::to_string(range.tensor));
    }
    bytes += range.bytes;
  }
  if (bytes == 0) return Refuse(name + " is empty");
  if (bytes != block.bytes) return Refuse(name + " claims another size than its ranges have");
  return {};
}

// In the order of the layout, with neighbours in one piece.
void SortAndJoin(std::vector<TensorRange>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const TensorRange& left, const TensorRange& right) {
    return left.tensor != right.tensor ? left.tensor < right.tensor
                                       : left.offset_bytes < right.offset_bytes;
  });
  std::vector<TensorRange> joined;
  for (const TensorRange& range : ranges) {
    const bool follows = !joined.empty() && joined.back().tensor == range.tensor &&
                         joined.back().offset_bytes + joined.back().bytes == range.offset_bytes;
    if (follows) {
      joined.back().bytes += range.bytes;
    } else {
      joined.push_back(range);
    }
  }
  ranges = std::move(joined);
}

}  // namespace

Plan Finish(Policy policy, const Draft& draft, const Timetable& table, double lower_bound_s) {
  HR_CHECK(table.begin_s.size() == draft.blocks.size() && table.end_s.size() == draft.blocks.size(),
           table.begin_s.size(), table.end_s.size(), draft.blocks.size());
  Plan plan;
  plan.policy = policy;
  plan.barrier = draft.barrier;
  plan.in_flight_max = draft.in_flight_max;
  plan.predicted_s = table.iteration_s;
  plan.lower_bound_s = lower_bound_s;
  plan.blocks.reserve(draft.blocks.size());
  for (std::size_t index = 0; index < draft.blocks.size(); ++index) {
    const auto ranges = draft.RangesOf(draft.blocks[index]);
    plan.blocks.push_back({{ranges.begin(), ranges.end()},
                           draft.blocks[index].bytes,
                           table.begin_s[index],
                           table.end_s[index],
                           draft.blocks[index].kind});
  }
  return plan;
}

Draft DraftOf(const Plan& plan) {
  Draft draft;
  draft.barrier = plan.barrier;
  draft.in_flight_max = plan.in_flight_max;
  for (const PlannedBlock& block : plan.blocks) {
    draft.Open(block.kind);
    for (const TensorRange& range : block.ranges)
      draft.Append(range.tensor, range.offset_bytes, range.bytes);
  }
  return draft;
}

std::vector<CodecRun> CodecRunsOf(std::span<const Codec> codecs) {
  std::vector<CodecRun> runs;
  for (std::uint32_t tensor = 0; tensor < codecs.size(); ++tensor) {
    if (codecs[tensor] == Codec::kNone) continue;
    if (!runs.empty() && runs.back().end() == tensor && runs.back().codec == codecs[tensor]) {
      ++runs.back().count;
    } else {
      runs.push_back({codecs[tensor], tensor, 1});
    }
  }
  return runs;
}

Codec CodecOf(const Plan& plan, std::uint32_t tensor) {
  const auto next = std::ranges::upper_bound(plan.codecs, tensor, {}, &CodecRun::first);
  if (next == plan.codecs.begin()) return Codec::kNone;
  const CodecRun& run = *std::prev(next);
  return tensor < run.end() ? run.codec : Codec(Codec::kNone);
}

std::vector<Codec> CodecsOf(const Plan& plan, std::size_t tensors_count) {
  std::vector<Codec> codecs;
  if (plan.codecs.empty()) return codecs;
  codecs.resize(tensors_count);
  for (const CodecRun& run : plan.codecs) {
    for (std::uint64_t tensor = run.first; tensor < run.end() && tensor < tensors_count; ++tensor) {
      codecs[tensor] = run.codec;
    }
  }
  return codecs;
}

bool HasHalves(const Plan& plan) {
  return std::ranges::any_of(plan.blocks,
                             [](const PlannedBlock& block) { return IsHalf(block.kind); });
}

Status CheckCoverage(const Plan& plan, const Workload& work) {
  std::vector<TensorRange> reduced;  // by all-reduces and all-gathers
  std::vector<TensorRange> scattered;
  std::vector<TensorRange> gathered;
  for (std::size_t index = 0; index < plan.blocks.size(); ++index) {
    const PlannedBlock& block = plan.blocks[index];
    if (Status status = CheckBlock(block, index, work); !status) return status;
    if (block.kind == Collective::kReduceScatter) {
      if (!gathered.empty()) {
        return Refuse("block " + std::to_string(index) +
                      " is a reduce-scatter behind an all-gather");
      }
      scattered.insert(scattered.end(), block.ranges.begin(), block.ranges.end());
      continue;
    }
    reduced.insert(reduced.end(), block.ranges.begin(), block.ranges.end());
    if (block.kind == Collective::kAllGather) {
      gathered.insert(gathered.end(), block.ranges.begin(), block.ranges.end());
    }
  }
  SortAndJoin(reduced);
  SortAndJoin(scattered);
  SortAndJoin(gathered);
  if (scattered != gathered) {
    return Refuse("its reduce-scatters hold other bytes than its all-gathers");
  }
  std::size_t next = 0;
  for (std::uint32_t tensor = 0; tensor < work.size(); ++tensor) {
    std::uint64_t covered = 0;
    for (; next < reduced.size() && reduced[next].tensor == tensor; ++next) {
      if (reduced[next].offset_bytes != covered) break;
      covered += reduced[next].bytes;
    }
    if (covered == work.bytes[tensor] &&
        (next == reduced.size() || reduced[next].tensor != tensor)) {
      continue;
    }
    return Refuse("tensor " + std::to_string(tensor) + " is not covered exactly once from byte " +
                  std::to_string(covered));
  }
  return {};
}

}  // namespace headrace::plan
