// Plans as bytes: what nodes send each other and compare.
//
// The canonical form is text, one item a line, every number a decimal integer, times in nanoseconds
// (rounded to nearest, at most 10^15), lines ended by one line feed:
//
//   headrace-plan/1
//   version 1
//   policy exact
//   barrier 0
//   in_flight_max 0
//   predicted_ns 58000000
//   lower_bound_ns 57000000
//   made_for 30000000 15000000 250000 8000000   backward_ns forward_ns startup_ns fs_per_byte
//   chosen 32 61000000 6 0 2 6 63000000     only where iterations were recorded: how many, p90_ns,
//                                policy and variant (choice.h) of the candidate that was chosen and
//                                of the next one, and that one's mean in ns
//   codec 3 0 5 120              only where gradients are compressed: kind and parameter of the
//   codec
//                                (ipc/base/codecs.h) of tensors 5 to 124; a line for each such run
//   codec_tried 3 0 1 72000000 58000000 253906 180000 110000     only where the plan had the
//   choice:
//                                kind and parameter of what was tried, 1 where it pays, iterations
//                                without and with it in ns, bytes that cross of a million, fs to
//                                encode and to decode a byte
//   blocks 2
//   block 0 1000000 2000000      begin_ns end_ns of the next block are the 2nd and 3rd numbers,
//   part 3 0 4096                the first is its place; then its ranges: tensor offset bytes;
//                                reduce_scatter or all_gather in the place of block: only that half
//   ...
//   end
//
// Equal plans give equal bytes and equal bytes give equal hashes, on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "service/plan/plan.h"

namespace headrace::plan {

std::string Canonical(const Plan& plan);

// FNV-1a, 64 bits, of the canonical form. It finds nodes that disagree by accident; it does not
// resist a node that lies.
std::uint64_t HashOf(std::string_view canonical);
std::uint64_t HashOf(const Plan& plan);

// Reads a canonical form back; refuses everything that Canonical would not have written, naming the
// line. Times come back rounded to nanoseconds.
Result<Plan> ParseCanonical(std::string_view text);

}  // namespace headrace::plan
