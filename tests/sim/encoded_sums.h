// Sums of one gradient that cross between nodes encoded, iteration by iteration: near what all
// ranks gave, and what is left out of them comes later.
//
// What all iterations so far have given, less what they have applied, is what the nodes have left
// out by now: each of them of its contribution, and an owner of the sum. No encoding errs by more
// than its bound, as a share of the largest value in its block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/program.h"

namespace headrace::sim {

class EncodedSums {
 public:
  // The sum of an iteration, by rank what went into it. What is wrong, if anything. Nothing is
  // known of sums after one that did not end well.
  std::optional<std::string> Check(std::uint64_t iteration, const Planned& planned,
                                   const std::vector<std::vector<std::byte>>& inputs,
                                   const std::vector<std::byte>& result);

 private:
  std::uint64_t iteration_ = 0;   // the last
  std::vector<double> left_out_;  // by element, of the nodes' sums: of all of them together
  double left_out_max_ = 0;       // what it may be
};

}  // namespace headrace::sim
