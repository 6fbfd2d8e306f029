// The orders of positions of a group: nodes may interleave them as they like.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kPlanned = kPlannedPosition;
// More than a window of pieces, of 4 KiB in these fleets.
constexpr std::uint64_t kLong = 40'000;

FleetTransfer PlannedSum(std::uint64_t count, std::uint32_t nodes, std::uint64_t position,
                         Collective kind = Collective::kAllReduce) {
  FleetTransfer work(kind, DType::kInt32, Reduction::kSum, count, nodes, position % 1000);
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

// The i-th transfer of one of the three orders: sums, broadcasts, and what a plan has.
FleetTransfer OfOrder(std::size_t order, std::uint64_t i, std::uint64_t count,
                      std::uint32_t nodes) {
  if (order == 0) return PlannedSum(count, nodes, 2 * i << 16);
  if (order == 1) return PlannedSum(count, nodes, (2 * i + 1) << 16, Collective::kBroadcast);
  return PlannedSum(count, nodes, kPlanned | i << 16);
}

// Every window and every place for a transfer is full of what the other node has yet to post.
TEST(ExchangeOrders, NeverWaitForEachOther) {
  for (std::size_t round = 0; round < 9; ++round) {
    const auto servers = static_cast<std::uint32_t>(round / 3);
    const std::size_t first = round % 3;
    const FleetOptions options{.data_count = 2, .servers_count = servers};
    Fleet fleet(options);
    const std::size_t half = options.exchange.transfers_max;
    std::vector<FleetTransfer> works;
    for (std::size_t i = 0; i < 2 * half; ++i) {
      works.push_back(OfOrder((first + i / half) % 3, i % half, kLong, 2));
    }
    for (std::size_t i = 0; i < half; ++i) fleet.Post(0, works[i].transfer());
    for (std::size_t i = 0; i < half; ++i) fleet.Post(1, works[half + i].transfer());
    EXPECT_EQ(fleet.node(0).Post(Fleet::Local(OfOrder(first, half, 1, 2).transfer(), 0), 0),
              PostResult::kBusy);
    const auto expected = AllExpected(works);
    fleet.RunToTheEnd();
    EXPECT_TRUE(fleet.completions(0).empty() && fleet.completions(1).empty()) << round;
    // A node goes on with one order to its end before it posts of the other.
    for (std::size_t i = 0; i < half; ++i) fleet.Post(0, works[half + i].transfer());
    fleet.RunToTheEnd();
    ASSERT_GE(fleet.completions(0).size(), half) << "round " << round;
    for (std::size_t i = 0; i < half; ++i) fleet.Post(1, works[i].transfer());
    fleet.RunToTheEnd();
    ASSERT_NO_FATAL_FAILURE(ExpectSums(fleet, works, expected, 2)) << "round " << round;
  }
}

// Each node draws its own interleaving, and whether what it has goes by urgency; all orders keep
// theirs.
TEST(ExchangeOrders, MayBeInterleavedInAnyWayOnEachNode) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 dice(seed);
    const auto nodes = static_cast<std::uint32_t>(2 + dice() % 4);
    Fleet fleet({.data_count = nodes,
                 .servers_count = static_cast<std::uint32_t>(dice() % 3),
                 .algorithm = static_cast<Algorithm>(dice() % 5),
                 .network = {.seed = seed, .jitter_ns = 200 * kMicrosecond}});
    std::vector<FleetTransfer> works;
    for (std::size_t i = 0; i < 60; ++i) {
      works.push_back(OfOrder(i / 20, i % 20, dice() % 9000, nodes));
    }
    const auto expected = AllExpected(works);
    std::vector<std::array<std::size_t, 3>> next(nodes, {0, 20, 40});
    for (std::uint32_t left = 60 * nodes; left > 0;) {
      const auto node = static_cast<std::uint32_t>(dice() % nodes);
      const std::size_t order = dice() % 3;
      if (dice() % 8 == 0) fleet.node(node).SetShare(1, {.by_urgency = dice() % 2 == 0});
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

// Pieces that have several runs of memory need staging, of which copies have one slot.
TEST(ExchangeOrders, NeverWaitForEachOthersStaging) {
  constexpr std::uint64_t kCount = 100'000;
  Fleet fleet({});
  std::vector<FleetTransfer> works;
  for (std::size_t order = 0; order < 3; ++order) works.push_back(OfOrder(order, 0, kCount, 2));
  const auto expected = AllExpected(works);
  std::vector<std::vector<transport::Run>> runs(works.size());
  for (std::size_t i = 0; i < works.size(); ++i) {
    Transfer& transfer = works[i].transfer();
    for (std::uint64_t begin = 0; begin < kCount; begin += 100) {
      runs[i].push_back({.offset = begin * 4, .count = 100});
    }
    transfer.runs = runs[i];
  }
  fleet.Post(0, works[0].transfer());
  fleet.Post(1, works[1].transfer());
  fleet.RunToTheEnd();
  fleet.Post(0, works[1].transfer());
  fleet.RunToTheEnd();
  ASSERT_EQ(fleet.completions(0).size(), 1U) << "the copy, while sums have all of their slots";
  fleet.Post(1, works[0].transfer());
  fleet.PostEverywhere(works[2].transfer());
  fleet.RunToTheEnd();
  ASSERT_NO_FATAL_FAILURE(ExpectSums(fleet, works, expected, 2));
}

FleetOptions Link() {
  return {.exchange = {}, .network = {.ns_per_byte = kNsPerByte, .eager_size = 128 << 10}};
}

// When a broadcast of 1 MiB has ended on both nodes that was posted behind a sum of 16 MiB.
TimeNs EndOfBroadcastBehindASum(const Share& share) {
  Fleet fleet(Link());
  FleetTransfer sum = OfOrder(0, 0, 4 << 20, 2);
  FleetTransfer broadcast = OfOrder(1, 0, 256 << 10, 2);
  for (std::uint32_t node = 0; node < 2; ++node) {
    fleet.node(node).SetShare(1, share);
    fleet.Post(node, sum.transfer());
  }
  while (fleet.network().now() < kMillisecond) fleet.Step();
  fleet.PostEverywhere(broadcast.transfer());
  const auto has_ended = [&](std::uint32_t node) {
    return std::ranges::any_of(fleet.completions(node), [&](const Completion& completion) {
      return completion.token == broadcast.transfer().token;
    });
  };
  while ((!has_ended(0) || !has_ended(1)) && fleet.Step()) {
  }
  return fleet.network().now();
}

// The sum takes 134 ms, the broadcast 8.4, and what the wire has already had 3.
TEST(ExchangeOrders, LetCopiesGoFirstUnlessTheJobWantsAllInTurn) {
  EXPECT_LT(EndOfBroadcastBehindASum({}), 20 * kMillisecond);
  EXPECT_GT(EndOfBroadcastBehindASum({.by_urgency = false}), 100 * kMillisecond);
}

// The link is never idle of broadcasts, and a sum of 512 KiB has 8 messages to send beside them.
TEST(ExchangeOrders, LetSumsGoOnBehindCopiesWithoutEnd) {
  constexpr std::uint64_t kDepth = 8;
  Fleet fleet(Link());
  FleetTransfer sum = OfOrder(0, 0, 128 << 10, 2);
  FleetTransfer broadcast = OfOrder(1, 0, 256 << 10, 2);
  broadcast.transfer().root = 0;
  const auto expected = sum.Expected();
  std::array<std::uint64_t, 2> posted{};
  const auto post_more = [&](std::uint32_t node) {
    for (; posted[node] < fleet.completions(node).size() + kDepth; ++posted[node]) {
      broadcast.transfer().position = (posted[node] + 1) << 16;
      broadcast.transfer().token = 1000 + posted[node];
      fleet.Post(node, broadcast.transfer());
    }
  };
  const auto has_sum = [&](std::uint32_t node) {
    return std::ranges::any_of(fleet.completions(node), [&](const Completion& completion) {
      return completion.token == sum.transfer().token;
    });
  };
  for (std::uint32_t node = 0; node < 2; ++node) post_more(node);
  while (fleet.network().now() < 100 * kMillisecond) {
    ASSERT_TRUE(fleet.Step());
    for (std::uint32_t node = 0; node < 2; ++node) post_more(node);
  }
  fleet.PostEverywhere(sum.transfer());
  while (!has_sum(0) || !has_sum(1)) {
    ASSERT_TRUE(fleet.Step());
    for (std::uint32_t node = 0; node < 2; ++node) post_more(node);
    ASSERT_LT(fleet.network().now(), 9 * SendPacer::kPatience);
  }
  EXPECT_TRUE(sum.members().Contents() == expected);
  EXPECT_GT(static_cast<double>(fleet.completions(1).size()) * (1 << 20),
            0.9 * static_cast<double>(fleet.network().now()) / kNsPerByte);
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
