#include "tests/contract/scattered.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "ipc/base/check.h"
#include "tests/support/loopback/reference.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kGap = 3;  // elements

}  // namespace

Scattered::Scattered(DType dtype, std::span<const std::uint64_t> counts, std::uint64_t seed)
    : element_size_(SizeOf(dtype)), extent_(kGap), runs_(counts.size()) {
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  for (const std::size_t index : order) {
    runs_[index] = {.offset = extent_ * element_size_, .count = counts[index]};
    extent_ += counts[index] + kGap;
    count_ += counts[index];
  }
}

std::vector<std::byte> Scattered::Gather(const std::byte* memory) const {
  std::vector<std::byte> elements;
  for (const Run& run : runs_) {
    const std::byte* const begin = memory + run.offset;
    elements.insert(elements.end(), begin, begin + run.count * element_size_);
  }
  return elements;
}

void Scattered::Scatter(std::span<const std::byte> elements, std::byte* memory) const {
  for (const Run& run : runs_) {
    const std::size_t size = run.count * element_size_;
    std::ranges::copy(elements.first(size), memory + run.offset);
    elements = elements.subspan(size);
  }
}

std::vector<std::vector<std::byte>> ExpectedOverRuns(const Members& members, Transfer transfer,
                                                     std::span<const Scattered> places) {
  const Members after = members.Copy();
  const std::uint64_t begin = transfer.skip;
  const std::uint64_t end = begin + transfer.count;
  const Members gathered(transfer.dtype, places[0].count(), transfer.members_count);
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) {
    HR_CHECK(places[i].count() == gathered.count(), i);
    std::ranges::copy(places[i].Gather(members.Member(i)), gathered.Member(i));
  }
  gathered.Describe(transfer);
  transfer.runs = {};
  transfer.skip = 0;
  transfer.output = gathered.Member(transfer.root);
  ReferenceMove(transfer, begin, end);
  for (std::uint32_t i = 0; i < transfer.members_count; ++i) {
    places[i].Scatter(gathered.Content(i), after.Member(i));
  }
  return after.Contents();
}

std::vector<std::uint64_t> RunCounts(std::size_t count, std::uint64_t count_max,
                                     std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> counts(count);
  for (std::uint64_t& run : counts) run = 1 + random() % count_max;
  return counts;
}

}  // namespace headrace::transport
