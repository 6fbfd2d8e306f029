// The two orders of positions of a group: nodes may interleave them as they like.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kPlanned = std::uint64_t{1} << 63;
// More than a window of pieces, of 4 KiB in these fleets.
constexpr std::uint64_t kLong = 40'000;

FleetTransfer PlannedSum(std::uint64_t count, std::uint32_t nodes, std::uint64_t position) {
  FleetTransfer work(Collective::kAllReduce, DType::kInt32, Reduction::kSum, count, nodes,
                     position % 1000);
  work.transfer().position = position;
  work.transfer().token = position + 1;
  return work;
}

void ExpectSums(Fleet& fleet, std::vector<FleetTransfer>& works,
                const std::vector<std::vector<std::vector<std::byte>>>& expected,
                std::uint32_t nodes) {
  for (std::uint32_t node = 0; node < nodes; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), works.size()) << "node " << node;
    for (const Completion& completion : fleet.completions(node)) {
      ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
    }
  }
  for (std::size_t i = 0; i < works.size(); ++i) {
    ASSERT_TRUE(works[i].members().Contents() == expected[i]) << "transfer " << i;
  }
}

std::vector<std::vector<std::vector<std::byte>>> AllExpected(
    const std::vector<FleetTransfer>& works) {
  std::vector<std::vector<std::vector<std::byte>>> expected;
  for (const FleetTransfer& work : works) expected.push_back(work.Expected());
  return expected;
}

// Every window and every place for a transfer is full of what the other node has yet to post.
TEST(ExchangeOrders, NeverWaitForEachOther) {
  for (const std::uint32_t servers : {0U, 1U, 2U}) {
    const FleetOptions options{.data_count = 2, .servers_count = servers};
    Fleet fleet(options);
    std::vector<FleetTransfer> posted;
    std::vector<FleetTransfer> planned;
    for (std::uint64_t i = 0; i < options.exchange.transfers_max; ++i) {
      posted.push_back(PlannedSum(kLong, 2, i));
      planned.push_back(PlannedSum(kLong, 2, kPlanned + i));
    }
    std::vector<FleetTransfer> works;
    for (auto& work : posted) fleet.Post(0, work.transfer());
    for (auto& work : planned) fleet.Post(1, work.transfer());
    EXPECT_EQ(fleet.node(0).Post(Fleet::Local(PlannedSum(1, 2, 500).transfer(), 0), 0),
              PostResult::kBusy);
    std::move(posted.begin(), posted.end(), std::back_inserter(works));
    std::move(planned.begin(), planned.end(), std::back_inserter(works));
    const auto expected = AllExpected(works);
    fleet.RunToTheEnd();
    EXPECT_TRUE(fleet.completions(0).empty() && fleet.completions(1).empty());
    // A node goes on with one order to its end before it posts of the other.
    for (std::size_t i = 0; i < works.size() / 2; ++i) {
      fleet.Post(0, works[works.size() / 2 + i].transfer());
    }
    fleet.RunToTheEnd();
    ASSERT_EQ(fleet.completions(0).size(), works.size() / 2);
    for (std::size_t i = 0; i < works.size() / 2; ++i) fleet.Post(1, works[i].transfer());
    fleet.RunToTheEnd();
    ASSERT_NO_FATAL_FAILURE(ExpectSums(fleet, works, expected, 2)) << servers << " servers";
  }
}

// Each node draws its own interleaving; both orders keep theirs.
TEST(ExchangeOrders, MayBeInterleavedInAnyWayOnEachNode) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 dice(seed);
    const auto nodes = static_cast<std::uint32_t>(2 + dice() % 4);
    Fleet fleet({.data_count = nodes,
                 .servers_count = static_cast<std::uint32_t>(dice() % 3),
                 .algorithm = static_cast<Algorithm>(dice() % 5),
                 .network = {.seed = seed, .jitter_ns = 200 * kMicrosecond}});
    std::vector<FleetTransfer> works;
    for (std::uint64_t i = 0; i < 20; ++i)
      works.push_back(PlannedSum(dice() % 9000, nodes, i << 16));
    for (std::uint64_t i = 0; i < 20; ++i) {
      works.push_back(PlannedSum(dice() % 9000, nodes, kPlanned | (i + 1) << 16));
    }
    const auto expected = AllExpected(works);
    std::vector<std::array<std::size_t, 2>> next(nodes, {0, 20});
    for (std::uint32_t left = 40 * nodes; left > 0;) {
      const auto node = static_cast<std::uint32_t>(dice() % nodes);
      const std::size_t order = dice() % 2;
      if (next[node][order] < 20 * (order + 1)) {
        fleet.Post(node, works[next[node][order]++].transfer());
        --left;
      }
      for (std::uint64_t steps = dice() % 20; steps > 0; --steps) fleet.Step();
    }
    fleet.RunToTheEnd();
    ASSERT_NO_FATAL_FAILURE(ExpectSums(fleet, works, expected, nodes)) << "seed " << seed;
    ASSERT_EQ(fleet.network().open_count(), 0U);
  }
}

// A server begins transfers from messages: the last position there is must not confuse it.
TEST(ExchangeOrders, ReachToTheLastPosition) {
  for (const std::uint32_t servers : {0U, 1U}) {
    Fleet fleet({.data_count = 2, .servers_count = servers, .exchange = {.transfers_max = 1}});
    std::vector<FleetTransfer> works;
    works.push_back(PlannedSum(kLong, 2, UINT64_MAX - 2));
    works.push_back(PlannedSum(kLong, 2, UINT64_MAX - 1));
    works.push_back(PlannedSum(kLong, 2, kPlanned - 1));
    const auto expected = AllExpected(works);
    for (auto& work : works) {
      fleet.PostEverywhere(work.transfer());
      fleet.RunToTheEnd();
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSums(fleet, works, expected, 2));
  }
}

}  // namespace
}  // namespace headrace::transport
