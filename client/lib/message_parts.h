// Converts the arrays or ranges of a gather, scatter or all_to_all into the form that is posted:
// one memory and a parts table (ipc/records.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "client/include/headrace/headrace.h"
#include "client/lib/arrays.h"
#include "ipc/base/collective.h"
#include "ipc/base/result.h"
#include "ipc/records.h"

namespace headrace::client {

// What each rank moves in a collective of that kind: all_to_all all of both; gather what it gives
// to the root and, on the root, what it gets of each; scatter the reverse. `ours` is this rank's
// one array or range, `all` those of every rank, which only the root has (null elsewhere).
//
// By rank, this one included, whose own part the library copies; counts of what is not moved are 0.
template <typename Part>
struct Moves {
  std::vector<Part> sent;
  std::vector<Part> received;
};
template <typename Part>
Moves<Part> RootedMoves(Collective kind, std::uint32_t rank, std::uint32_t root,
                        std::uint32_t world_size, const Part& ours, const Part* all) {
  std::vector<Part> to_root(world_size, Part{});
  std::vector<Part> at_root(world_size, Part{});
  to_root[root] = ours;
  if (rank == root) at_root.assign(all, all + world_size);
  if (kind == kScatter) return {.sent = std::move(at_root), .received = std::move(to_root)};
  return {.sent = std::move(to_root), .received = std::move(at_root)};
}

// In staging memory: first what is sent, then what is received, each in the order of the ranks. Its
// table is with it, and `count` the elements of all. This rank's own part is copied at once.
// kInvalidArgument when memory is missing or the two ends of this rank's own part differ.
struct StagedMessages {
  ArrayUse use;
  std::uint64_t count = 0;
};
Result<StagedMessages> StageMessages(const Moves<hr_array>& arrays, std::uint32_t rank,
                                     DType dtype);

// An all_gather (`gathers`: `own` is read, `parts` are written) or reduce_scatter (the reverse)
// with parts of any size, of every rank. What an all_gather has no memory for is not wanted.
Result<StagedMessages> StageParts(bool gathers, const hr_array& own,
                                  std::span<const hr_array> parts, std::uint32_t rank, DType dtype);
// The table of parts of that many elements, which are together `count`.
Result<std::vector<ipc::PartRow>> PartRowsOf(std::span<const std::uint64_t> counts,
                                             std::uint64_t count);

// The table for ranges of registered memory: of an input from element `input` of the record's
// memory on and of an output from `output` on, with `input_count` and `output_count` elements.
// kInvalidArgument when ranges do not lie in theirs, or the ends of the own part differ.
struct RegisteredMemory {
  std::uint64_t input = 0;
  std::uint64_t input_count = 0;
  std::uint64_t output = 0;
  std::uint64_t output_count = 0;
};
Result<std::vector<ipc::PartRow>> TableOf(const Moves<hr_range>& ranges, std::uint32_t rank,
                                          const RegisteredMemory& memory);

}  // namespace headrace::client
