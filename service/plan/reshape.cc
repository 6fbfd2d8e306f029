#include "service/plan/reshape.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ipc/base/check.h"
#include "service/plan/infinity.h"

namespace headrace::plan {
namespace {

std::vector<TensorRange> InputFirst(std::span<const TensorRange> ranges) {
  std::vector<TensorRange> sorted(ranges.begin(), ranges.end());
  std::sort(sorted.begin(), sorted.end(), [](const TensorRange& left, const TensorRange& right) {
    return left.tensor != right.tensor ? left.tensor < right.tensor
                                       : left.offset_bytes < right.offset_bytes;
  });
  return sorted;
}

// Appends the bytes from `begin` to `end` of a row of ranges as one block.
void AppendRange(Draft& draft, std::span<const TensorRange> ranges, std::uint64_t begin,
                 std::uint64_t end) {
  draft.Open();
  std::uint64_t at = 0;
  for (const TensorRange& range : ranges) {
    const std::uint64_t from = std::clamp(begin, at, at + range.bytes);
    const std::uint64_t to = std::clamp(end, at, at + range.bytes);
    draft.Append(range.tensor, range.offset_bytes + (from - at), to - from);
    at += range.bytes;
  }
  draft.Close();
}

// For one plan; beyond it blocks stay whole, which only sizes that hardly grow reach.
constexpr std::size_t kPiecesMax = 512;

// The sizes of the pieces of one block, in elements.
class Grading {
 public:
  Grading(const Workload& work, const PipelineLines& lines, double bytes_first, bool shrinks)
      : lines_(lines),
        element_(static_cast<double>(work.element_bytes)),
        first_(std::max(bytes_first, element_)),
        shrinks_(shrinks) {}

  // `waits`: the block waits for a release of its own.
  std::vector<std::uint64_t> Of(std::uint64_t elements, bool waits) {
    std::vector<std::uint64_t> ends = shrinks_ ? Ends(elements / 2) : std::vector<std::uint64_t>();
    std::uint64_t left = elements;
    for (const std::uint64_t size : ends) left -= size;
    std::vector<std::uint64_t> sizes;
    for (bool begins = waits; left > 0; begins = false) {
      const double most = begins ? std::min(first_, room_) : room_;
      const double fits = std::floor(std::max(most, element_) / element_);
      const bool all = fits >= static_cast<double>(left) || count_ >= kPiecesMax;
      const std::uint64_t size = all ? left : static_cast<std::uint64_t>(fits);
      Append(size, sizes);
      left -= size;
    }
    for (auto size = ends.rbegin(); size != ends.rend(); ++size) Append(*size, sizes);
    return sizes;
  }

 private:
  // Those at the end of a block, from the last on: at most `elements`.
  std::vector<std::uint64_t> Ends(std::uint64_t elements) const {
    std::vector<std::uint64_t> sizes;
    double bytes = first_;
    for (std::uint64_t left = elements; left > 0;) {
      const double fits = std::floor(bytes / element_);
      if (!(fits >= 1) || fits > static_cast<double>(left)) break;
      sizes.push_back(static_cast<std::uint64_t>(fits));
      left -= sizes.back();
      bytes = std::max(lines_.BytesBehind(bytes), 2 * bytes);
    }
    return sizes;
  }
  void Append(std::uint64_t size, std::vector<std::uint64_t>& sizes) {
    sizes.push_back(size);
    ++count_;
    room_ = lines_.BytesBehind(static_cast<double>(size) * element_);
  }

  const PipelineLines& lines_;
  const double element_;
  const double first_;
  const bool shrinks_;
  double room_ = kInfinity;  // of the next piece
  std::size_t count_ = 0;    // of pieces so far
};

}  // namespace

Draft Rewritten(const Workload& work, const Draft& draft, std::size_t at, std::size_t count,
                bool halve) {
  HR_CHECK(count > 0 && at + count <= draft.blocks.size(), at, count, draft.blocks.size());
  Draft copy;
  copy.in_flight_max = draft.in_flight_max;
  const auto keep = [&](std::size_t begin, std::size_t end) {
    for (std::size_t index = begin; index < end; ++index) {
      AppendRange(copy, draft.RangesOf(draft.blocks[index]), 0, draft.blocks[index].bytes);
    }
  };
  keep(0, at);
  const DraftBlock& first = draft.blocks[at];
  const DraftBlock& last = draft.blocks[at + count - 1];
  const auto whole =
      std::span(draft.ranges).subspan(first.ranges_begin, last.ranges_end - first.ranges_begin);
  const std::vector<TensorRange> ranges = InputFirst(whole);
  std::uint64_t bytes = 0;
  for (const TensorRange& range : ranges) bytes += range.bytes;
  const std::uint64_t border = halve ? bytes / 2 / work.element_bytes * work.element_bytes : bytes;
  AppendRange(copy, ranges, 0, border);
  if (halve) AppendRange(copy, ranges, border, bytes);
  keep(at + count, draft.blocks.size());
  return copy;
}

Draft Pieces(const Workload& work, const Draft& draft, std::uint64_t count) {
  Draft copy;
  for (const DraftBlock& block : draft.blocks) {
    const std::vector<TensorRange> ranges = InputFirst(draft.RangesOf(block));
    const std::uint64_t elements = block.bytes / work.element_bytes;
    for (std::uint64_t piece = 0; piece < count; ++piece) {
      const std::uint64_t begin = elements * piece / count * work.element_bytes;
      const std::uint64_t end = elements * (piece + 1) / count * work.element_bytes;
      AppendRange(copy, ranges, begin, end);
    }
  }
  return copy;
}

Draft Capped(const Workload& work, const Draft& draft, double bytes_max) {
  Draft copy;
  for (const DraftBlock& block : draft.blocks) {
    const std::vector<TensorRange> ranges = InputFirst(draft.RangesOf(block));
    const std::uint64_t elements = block.bytes / work.element_bytes;
    const double wanted = std::ceil(static_cast<double>(block.bytes) / bytes_max);
    const auto count =
        static_cast<std::uint64_t>(std::clamp(wanted, 1.0, static_cast<double>(elements)));
    for (std::uint64_t piece = 0; piece < count; ++piece) {
      AppendRange(copy, ranges, elements * piece / count * work.element_bytes,
                  elements * (piece + 1) / count * work.element_bytes);
    }
  }
  return copy;
}

Draft Joined(const Draft& draft, double bytes_min) {
  Draft joined;
  for (std::size_t at = 0; at < draft.blocks.size();) {
    const std::size_t first = at;
    double bytes = 0;
    while (at < draft.blocks.size() && (at == first || bytes < bytes_min)) {
      bytes += static_cast<double>(draft.blocks[at++].bytes);
    }
    const std::uint32_t ranges_begin = draft.blocks[first].ranges_begin;
    const auto whole = std::span(draft.ranges)
                           .subspan(ranges_begin, draft.blocks[at - 1].ranges_end - ranges_begin);
    joined.Open();
    for (const TensorRange& range : InputFirst(whole)) {
      joined.Append(range.tensor, range.offset_bytes, range.bytes);
    }
  }
  return joined;
}

double PipelineLines::BytesBehind(double bytes) const {
  const double room_s = slowest.Seconds(bytes) - before.startup_s;
  if (!(before.s_per_byte > 0)) return kInfinity;
  return room_s / before.s_per_byte;
}

Draft Graded(const Workload& work, const Draft& draft, const PipelineLines& lines,
             double bytes_first, bool shrinks) {
  Draft copy;
  Grading grading(work, lines, bytes_first, shrinks);
  double released_s = -1;
  for (const DraftBlock& block : draft.blocks) {
    const double release_s = work.release_s[block.lowest];
    const bool waits = release_s > released_s;
    released_s = std::max(released_s, release_s);
    const std::vector<TensorRange> ranges = InputFirst(draft.RangesOf(block));
    std::uint64_t begin = 0;
    for (const std::uint64_t elements : grading.Of(block.bytes / work.element_bytes, waits)) {
      const std::uint64_t end = begin + elements * work.element_bytes;
      AppendRange(copy, ranges, begin, end);
      begin = end;
    }
  }
  return copy;
}

}  // namespace headrace::plan
