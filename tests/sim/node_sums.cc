#include "tests/sim/node_sums.h"

#include <bit>

#include "tests/support/loopback/reference.h"

namespace headrace::sim {
namespace {

using Bytes = std::vector<std::byte>;

// The terms are added one after another; `divisor` 0: nothing is divided.
Bytes Sum(const Planned& planned, const std::vector<const Bytes*>& terms, std::uint32_t divisor) {
  Bytes sum(planned.Bytes());
  std::vector<const std::byte*> inputs;
  for (const Bytes* const term : terms) inputs.push_back(term->data());
  std::byte* const output = sum.data();
  const bool average = planned.reduction == Reduction::kAverage;
  const Reduction reduction = average && divisor == 0 ? Reduction::kSum : planned.reduction;
  transport::ReferenceReduce(planned.dtype, reduction, inputs, {&output, 1}, 0, planned.count,
                             divisor);
  return sum;
}

std::vector<const Bytes*> PointersTo(const std::vector<Bytes>& terms) {
  std::vector<const Bytes*> pointers;
  for (const Bytes& term : terms) pointers.push_back(&term);
  return pointers;
}

// As it grows on its way round from node `first`.
Bytes SumOfRing(const Planned& planned, const std::vector<Bytes>& terms, std::size_t first,
                std::uint32_t divisor) {
  Bytes sum = terms[first];
  for (std::size_t step = 1; step < terms.size(); ++step) {
    const bool last = step + 1 == terms.size();
    sum = Sum(planned, {&sum, &terms[(first + step) % terms.size()]}, last ? divisor : 0);
  }
  return sum;
}

// Neighbours are folded until a power of two is left, then pairs, pairs of pairs, ...
Bytes SumOfDoubling(const Planned& planned, std::vector<Bytes> terms, std::uint32_t divisor) {
  const std::size_t surplus = terms.size() - std::bit_floor(terms.size());
  for (std::size_t i = 0; i < surplus; ++i) {
    terms[i] = Sum(planned, {&terms[i], &terms[i + 1]}, 0);
    terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  while (terms.size() > 1) {
    const bool last = terms.size() == 2;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i] = Sum(planned, {&terms[i], &terms[i + 1]}, last ? divisor : 0);
      terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }
  return terms.front();
}

}  // namespace

std::vector<Bytes> SumsOf(const Planned& planned, const NodeSums& nodes,
                          const std::vector<Bytes>& inputs) {
  std::vector<Bytes> terms;
  std::uint32_t divisor = 0;
  for (const std::vector<std::uint32_t>& ranks : nodes.ranks) {
    std::vector<const Bytes*> own;
    for (const std::uint32_t rank : ranks) own.push_back(&inputs[rank]);
    divisor += static_cast<std::uint32_t>(own.size());
    // At a rendezvous to which only one node came, its job is like any other inside of a node.
    const bool alone = nodes.ranks.size() == 1;
    if (alone)
      return {Sum(planned, own, planned.contributors != 0 ? planned.contributors : divisor)};
    terms.push_back(own.size() == 1 ? *own.front() : Sum(planned, own, 0));
  }
  if (planned.contributors != 0) divisor = planned.contributors;
  using transport::Algorithm;
  // Parts are reduced to the node that gets them, which adds as servers do.
  const bool in_order = nodes.served || planned.kind != Collective::kAllReduce;
  const Algorithm algorithm = in_order ? Algorithm::kDirectExchange : nodes.algorithm;
  const auto may_be = [algorithm](Algorithm one) {
    return algorithm == one || algorithm == Algorithm::kAuto;
  };
  std::vector<Bytes> sums;
  if (may_be(Algorithm::kDirectExchange) || may_be(Algorithm::kDirectScatter)) {
    sums.push_back(Sum(planned, PointersTo(terms), divisor));
  }
  if (may_be(Algorithm::kRecursiveDoubling)) {
    sums.push_back(SumOfDoubling(planned, terms, divisor));
  }
  for (std::size_t first = 0; may_be(Algorithm::kRing) && first < terms.size(); ++first) {
    sums.push_back(SumOfRing(planned, terms, first, divisor));
  }
  return sums;
}

std::pair<std::ptrdiff_t, std::ptrdiff_t> SummedBytes(const Planned& planned,
                                                      std::uint32_t world_size,
                                                      std::uint32_t rank) {
  const auto all = static_cast<std::ptrdiff_t>(planned.Bytes());
  if (planned.kind == Collective::kAllReduce) return {0, all};
  if (planned.kind == Collective::kReduce) return {0, rank == planned.root ? all : 0};
  if (planned.uneven) {
    const ipc::PartRow part = PartsOf(planned, world_size, rank)[rank];
    const auto size = static_cast<std::ptrdiff_t>(SizeOf(planned.dtype));
    const auto begin = static_cast<std::ptrdiff_t>(part.sent_offset) * size;
    return {begin, begin + static_cast<std::ptrdiff_t>(part.sent_count) * size};
  }
  return {all / world_size * rank, all / world_size * (rank + 1)};
}

}  // namespace headrace::sim
