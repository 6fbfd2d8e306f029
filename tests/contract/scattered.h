// Elements that lie in runs, here and there in a member's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/contract/members.h"
#include "transport/transport.h"

namespace headrace::transport {

class Scattered {
 public:
  // One run for each of `counts`. Where they lie in memory is drawn from the seed; between them,
  // before and after, are elements of no run.
  Scattered(DType dtype, std::span<const std::uint64_t> counts, std::uint64_t seed);

  const std::vector<Run>& runs() const { return runs_; }
  // Elements of all runs, and of the memory they lie in; the latter is the same for all seeds.
  std::uint64_t count() const { return count_; }
  std::uint64_t extent() const { return extent_; }

  // The elements of all runs, one behind the other, and the way back.
  std::vector<std::byte> Gather(const std::byte* memory) const;
  void Scatter(std::span<const std::byte> elements, std::byte* memory) const;

 private:
  std::size_t element_size_;
  std::uint64_t count_ = 0;
  std::uint64_t extent_ = 0;
  std::vector<Run> runs_;
};

// What the transfer must leave in the members' memory, where member i's elements lie as `places[i]`
// says: all are gathered, moved by the scalar reference as one piece of memory, and put back. The
// output of a reduce is the root's memory.
std::vector<std::vector<std::byte>> ExpectedOverRuns(const Members& members, Transfer transfer,
                                                     std::span<const Scattered> places);

// `count` runs of 1 to `count_max` elements.
std::vector<std::uint64_t> RunCounts(std::size_t count, std::uint64_t count_max,
                                     std::uint64_t seed);

}  // namespace headrace::transport
