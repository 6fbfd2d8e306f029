// Whether a post uses memory that another open post of the same rank uses, and at least one of them
// writes it: the two are not ordered, so the later one is refused. Reading the same bytes twice is
// allowed. All of an operation's memory counts as written, except that of a broadcast on its root,
// and of a reduce on all ranks but its root. With a parts table, the sent elements, from the first
// to the last, are read, and the received ones are written; a reduce_scatter whose result goes
// elsewhere only reads its memory. A post that awaits its ready word uses its memory from then on.
//
// Memory that is handed over twice, as two segments, is not recognized as the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "service/dispatch/job/job.h"

namespace headrace::service {

// What a rank uses for an operation, without ranges that have no elements.
struct UsedRanges {
  std::array<OpenRange, 2> ranges;
  std::size_t count = 0;

  std::span<const OpenRange> all() const& { return std::span(ranges).first(count); }
  std::span<const OpenRange> all() && = delete;  // would outlive the ranges
  void Add(const OpenRange& range);
};
UsedRanges RangesOf(const Job& job, const OperationSpec& spec, std::uint32_t rank);

// Why `rank` may not post this now; nothing where it may. Allocates only for the failure.
std::optional<Failure> FindOverlap(Job& job, std::uint32_t rank, const OperationSpec& spec);
// The same of gradient `tensor` of the layout, which is not open for that rank. Gradients do not
// overlap each other.
std::optional<Failure> FindOverlap(Job& job, std::uint32_t rank, std::uint32_t tensor);

}  // namespace headrace::service
