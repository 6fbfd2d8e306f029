// Whom a transfer waits for, as each node can see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kLarge = 100'000;  // pieces enough for each owner to have some

// The nodes of a fleet in which some never post, after all others have come as far as they can.
class Waiting {
 public:
  Waiting(const FleetOptions& options, Collective kind, std::uint64_t count,
          const std::vector<std::uint32_t>& absent, std::uint32_t root = 0)
      : fleet_(options), work_(kind, DType::kInt32, Reduction::kSum, count, options.data_count, 0) {
    work_.transfer().root = root;
    work_.transfer().output = work_.transfer().members[root];
    for (std::uint32_t node = 0; node < options.data_count; ++node) {
      if (std::ranges::find(absent, node) == absent.end()) fleet_.Post(node, work_.transfer());
    }
    fleet_.RunToTheEnd();
  }

  std::uint64_t AskedAt(std::uint32_t node) {
    return fleet_.node(node).Missing(work_.transfer().token);
  }
  bool EndedAt(std::uint32_t node) const { return !fleet_.completions(node).empty(); }
  Fleet& fleet() { return fleet_; }
  Transfer& transfer() { return work_.transfer(); }

 private:
  Fleet fleet_;
  FleetTransfer work_;
};

FleetOptions Nodes(std::uint32_t count, Algorithm algorithm, std::size_t eager_size = 8192) {
  FleetOptions options{.data_count = count, .algorithm = algorithm};
  options.network.eager_size = eager_size;
  return options;
}

class ExchangeMissing : public ::testing::TestWithParam<std::size_t> {};

// In these all nodes name exactly the one that is missing, also where messages wait to be taken.
TEST_P(ExchangeMissing, IsTheOneThatNeverPostsAnAllReduce) {
  for (const Algorithm algorithm :
       {Algorithm::kDirectExchange, Algorithm::kDirectScatter, Algorithm::kRing}) {
    for (const std::uint32_t nodes : {2U, 3U, 4U, 5U, 8U}) {
      for (std::uint32_t absent = 0; absent < nodes; ++absent) {
        Waiting waiting(Nodes(nodes, algorithm, GetParam()), Collective::kAllReduce, kLarge,
                        {absent});
        for (std::uint32_t node = 0; node < nodes; ++node) {
          const std::uint64_t expected = node == absent ? 0 : MemberBit(absent);
          EXPECT_EQ(waiting.AskedAt(node), expected)
              << "algorithm " << static_cast<int>(algorithm) << ", " << nodes << " nodes, "
              << absent << " is absent, node " << node << " is asked";
        }
      }
    }
  }
}

TEST_P(ExchangeMissing, AreAllThatNeverPostWhereEachWouldSendAtOnce) {
  for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kDirectScatter}) {
    Waiting waiting(Nodes(5, algorithm, GetParam()), Collective::kAllReduce, kLarge, {1, 4});
    for (const std::uint32_t node : {0U, 2U, 3U}) EXPECT_EQ(waiting.AskedAt(node), 0b10010U);
  }
}

// Pairs at growing distance: who pairs with the missing one in the first step names it. The others
// name their partner, which may be in the same place, and can say more when asked.
TEST_P(ExchangeMissing, IsThePartnerInRecursiveDoublingAndThePartnersKnowMore) {
  for (const std::uint32_t nodes : {2U, 3U, 4U, 5U, 8U}) {
    for (std::uint32_t absent = 0; absent < nodes; ++absent) {
      Waiting waiting(Nodes(nodes, Algorithm::kRecursiveDoubling, GetParam()),
                      Collective::kAllReduce, 100, {absent});
      for (std::uint32_t node = 0; node < nodes; ++node) {
        if (node == absent) continue;
        // From partner to partner the way leads to the missing one.
        std::uint32_t at = node;
        for (std::uint32_t steps = 0; at != absent; ++steps) {
          ASSERT_LT(steps, nodes);
          const std::uint64_t named = waiting.AskedAt(at);
          ASSERT_TRUE(std::has_single_bit(named)) << nodes << " nodes, node " << at;
          at = static_cast<std::uint32_t>(std::countr_zero(named));
        }
      }
    }
  }
}

TEST_P(ExchangeMissing, IsTheOneThatNeverPostsWhereServersSumAsTheServersSeeIt) {
  FleetOptions options = Nodes(3, Algorithm::kAuto, GetParam());
  options.servers_count = 2;
  Waiting waiting(options, Collective::kAllReduce, kLarge, {1});
  // The nodes hear of servers only, and of those nothing that would clear them.
  for (const std::uint32_t node : {0U, 2U}) {
    EXPECT_NE(waiting.AskedAt(node), 0U);
    EXPECT_EQ(waiting.AskedAt(node) & ~0b11000ULL, 0U) << "a server";
  }
}

TEST_P(ExchangeMissing, IsWhoOwesSomethingInABroadcast) {
  // From the root to all: only the root waits for one that never posts, while it is in its window.
  Waiting direct(Nodes(4, Algorithm::kDirectExchange, GetParam()), Collective::kBroadcast, 10'000,
                 {2}, 1);
  EXPECT_EQ(direct.AskedAt(1), MemberBit(2));
  for (const std::uint32_t node : {0U, 3U}) EXPECT_TRUE(direct.EndedAt(node));
  Waiting rootless(Nodes(4, Algorithm::kDirectExchange, GetParam()), Collective::kBroadcast, kLarge,
                   {1}, 1);
  for (const std::uint32_t node : {0U, 2U, 3U}) EXPECT_EQ(rootless.AskedAt(node), MemberBit(1));
  // By owners: those between know it too.
  for (const std::uint32_t absent : {1U, 2U}) {
    Waiting owners(Nodes(4, Algorithm::kDirectScatter, GetParam()), Collective::kBroadcast, kLarge,
                   {absent}, 1);
    for (std::uint32_t node = 0; node < 4; ++node) {
      if (node == absent) continue;
      EXPECT_EQ(owners.AskedAt(node), MemberBit(absent)) << node;
    }
  }
}

// Who waits for word only names the root, whose own transfer says who it is.
TEST_P(ExchangeMissing, IsWhoOwesTheRootInAReduce) {
  Waiting waiting(Nodes(4, Algorithm::kAuto, GetParam()), Collective::kReduce, kLarge, {2}, 1);
  EXPECT_EQ(waiting.AskedAt(1), MemberBit(2));
  for (const std::uint32_t node : {0U, 3U}) EXPECT_EQ(waiting.AskedAt(node), MemberBit(1));
}

TEST_P(ExchangeMissing, IsFoundFromNodeToNodeInABarrier) {
  for (std::uint32_t absent = 0; absent < 5; ++absent) {
    Waiting waiting(Nodes(5, Algorithm::kAuto, GetParam()), Collective::kBarrier, 0, {absent});
    for (std::uint32_t node = 0; node < 5; ++node) {
      std::uint32_t at = node;
      for (std::uint32_t steps = 0; at != absent; ++steps) {
        ASSERT_LT(steps, 5U);
        const std::uint64_t named = waiting.AskedAt(at);
        ASSERT_TRUE(std::has_single_bit(named));
        at = static_cast<std::uint32_t>(std::countr_zero(named));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(With, ExchangeMissing, ::testing::Values(0, 8192), [](const auto& test) {
  return test.param == 0 ? "Announcements" : "MessagesAtOnce";
});

TEST(MissingMember, IsNobodyBeforeThePostAfterTheEndAndForUnknownTokens) {
  Waiting waiting(Nodes(2, Algorithm::kAuto), Collective::kAllReduce, kLarge, {1});
  EXPECT_EQ(waiting.AskedAt(1), 0U);
  EXPECT_EQ(waiting.fleet().node(0).Missing(77), 0U);
  EXPECT_EQ(waiting.AskedAt(0), MemberBit(1));
  waiting.fleet().Post(1, waiting.transfer());
  waiting.fleet().RunToTheEnd();
  EXPECT_EQ(waiting.AskedAt(0), 0U);
  EXPECT_EQ(waiting.AskedAt(1), 0U);
}

TEST(MissingMember, IsNobodyForATransferThatHasNotBegunBehindAnother) {
  FleetOptions options = Nodes(2, Algorithm::kDirectScatter);
  Waiting waiting(options, Collective::kAllReduce, 10 * kLarge, {1});
  FleetTransfer second(Collective::kAllReduce, DType::kInt32, Reduction::kSum, 100, 2, 1);
  waiting.fleet().Post(0, second.transfer());
  waiting.fleet().RunToTheEnd();
  EXPECT_EQ(waiting.AskedAt(0), MemberBit(1));
  EXPECT_EQ(waiting.fleet().node(0).Missing(second.transfer().token), 0U);
}

// All have posted: node c just takes nothing from node a any more.
TEST(MissingMember, IsThePeerThatTakesNothing) {
  FleetOptions options = Nodes(3, Algorithm::kDirectScatter);
  options.exchange.peer_bytes_max = 8192;
  Fleet fleet(options);
  FleetTransfer work(Collective::kAllReduce, DType::kInt32, Reduction::kSum, kLarge, 3, 1);
  fleet.network().Dam("a", "c");
  fleet.PostEverywhere(work.transfer());
  fleet.RunToTheEnd();
  const std::uint64_t token = work.transfer().token;
  EXPECT_EQ(fleet.node(0).Missing(token), MemberBit(2));
  EXPECT_EQ(fleet.node(2).Missing(token), MemberBit(0))
      << "from there it looks the other way round";
  // Another job's transfer, of which nothing has got as far as the wire.
  fleet.OpenGroup(2);
  FleetTransfer other(Collective::kBroadcast, DType::kInt32, Reduction::kSum, 500, 3, 3);
  other.transfer().group = 2;
  fleet.Post(0, other.transfer());
  fleet.RunToTheEnd();
  fleet.network().AdvanceTo(fleet.network().now() + kSecond);
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.node(0).Missing(other.transfer().token) & MemberBit(2), MemberBit(2));
}

TEST(MissingMember, IsNobodyWhileItsOwnTurnHasNotCome) {
  FleetOptions options = Nodes(2, Algorithm::kDirectExchange);
  options.exchange.peer_bytes_max = 1;
  options.network.ns_per_byte = 1e6;
  Fleet fleet(options);
  fleet.OpenGroup(2);
  FleetTransfer first(Collective::kBroadcast, DType::kUInt8, Reduction::kSum, 4000, 2, 0);
  fleet.Post(0, first.transfer());
  fleet.Step();
  FleetTransfer second(Collective::kBroadcast, DType::kUInt8, Reduction::kSum, 4000, 2, 2);
  second.transfer().group = 2;
  fleet.Post(0, second.transfer());
  fleet.Step();
  EXPECT_EQ(fleet.node(0).Missing(first.transfer().token), MemberBit(1)) << "it is being sent";
  EXPECT_EQ(fleet.node(0).Missing(second.transfer().token), 0U);
}

}  // namespace
}  // namespace headrace::transport
