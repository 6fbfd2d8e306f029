// How transfers between nodes are taken, matched, counted and ended.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/expect_text.h"
#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

FleetTransfer Sum(std::uint64_t count, std::uint32_t nodes, std::uint64_t position) {
  return {Collective::kAllReduce, DType::kFloat32, Reduction::kSum, count, nodes, position};
}

TEST(Exchange, SaysWhatItCanDo) {
  Fleet fleet({});
  const Capabilities& can = fleet.node(0).capabilities();
  EXPECT_EQ(can.name, "ucx0");
  EXPECT_TRUE(can.Supports(Collective::kAllReduce));
  EXPECT_TRUE(can.Supports(Collective::kReduce));
  EXPECT_TRUE(can.Supports(Collective::kBroadcast));
  EXPECT_TRUE(can.Supports(Collective::kBarrier));
  EXPECT_FALSE(can.Supports(Collective::kReduceScatter));
  EXPECT_FALSE(can.Supports(Collective::kAllGather));
  EXPECT_EQ(fleet.node(1).address(), "simulated:b");
  EXPECT_EQ(fleet.node(1).WireNames(), "simulated");
}

TEST(Exchange, HasNothingToDoBeforeThePostAndAfterTheEnd) {
  Fleet fleet({});
  EXPECT_FALSE(fleet.Step());
  EXPECT_TRUE(fleet.node(0).PrepareToSleep());
  FleetTransfer work = Sum(100, 2, 1);
  fleet.PostEverywhere(work.transfer());
  EXPECT_FALSE(fleet.node(0).PrepareToSleep());
  fleet.RunToTheEnd();
  EXPECT_TRUE(fleet.node(0).PrepareToSleep());
}

TEST(Exchange, SendsEachByteOfAnAllReduceTwiceTimesNMinusOneOverN) {
  constexpr std::uint64_t kCount = 240000;  // divides by 2, 3, 4, 5
  for (const std::uint32_t nodes : {2U, 3U, 4U, 5U}) {
    for (const Algorithm algorithm : {Algorithm::kDirectScatter, Algorithm::kRing}) {
      FleetOptions options{.data_count = nodes, .algorithm = algorithm};
      options.exchange.piece_size = 16384;
      Fleet fleet(options);
      FleetTransfer work = Sum(kCount, nodes, 1);
      fleet.PostEverywhere(work.transfer());
      fleet.RunToTheEnd();
      std::uint64_t total = 0;
      const std::uint64_t ideal = 2 * (nodes - 1) * kCount * 4 / nodes;
      for (std::uint32_t node = 0; node < nodes; ++node) {
        const NetworkCounters counters = fleet.node(node).counters();
        total += counters.bytes_sent;
        // Shares are whole pieces, so one node may have one piece more than another.
        EXPECT_NEAR(static_cast<double>(counters.bytes_sent), static_cast<double>(ideal),
                    16384.0 * nodes);
        EXPECT_EQ(counters.messages_dropped, 0U);
      }
      EXPECT_EQ(total, ideal * nodes);
    }
  }
}

TEST(Exchange, CountsWhatItReceivesLikeWhatOthersSend) {
  Fleet fleet({.data_count = 4});
  FleetTransfer work = Sum(12345, 4, 1);
  fleet.PostEverywhere(work.transfer());
  fleet.RunToTheEnd();
  NetworkCounters all;
  for (std::uint32_t node = 0; node < 4; ++node) {
    const NetworkCounters counters = fleet.node(node).counters();
    all.bytes_sent += counters.bytes_sent;
    all.bytes_received += counters.bytes_received;
    all.messages_sent += counters.messages_sent;
    all.messages_received += counters.messages_received;
  }
  EXPECT_GT(all.bytes_sent, 0U);
  EXPECT_EQ(all.bytes_sent, all.bytes_received);
  EXPECT_EQ(all.messages_sent, all.messages_received);
}

TEST(Exchange, SendsOverServersOnceThereAndOnceBack) {
  constexpr std::uint64_t kCount = 100000;
  Fleet fleet({.data_count = 3, .servers_count = 2});
  FleetTransfer work = Sum(kCount, 3, 1);
  fleet.PostEverywhere(work.transfer());
  fleet.RunToTheEnd();
  std::uint64_t by_servers = 0;
  for (std::uint32_t node = 0; node < 3; ++node) {
    EXPECT_EQ(fleet.node(node).counters().bytes_sent, kCount * 4);
  }
  for (std::uint32_t node = 3; node < 5; ++node) {
    by_servers += fleet.node(node).counters().bytes_sent;
    EXPECT_TRUE(fleet.completions(node).empty());
  }
  EXPECT_EQ(by_servers, 3 * kCount * 4);
}

TEST(Exchange, HoldsWhatComesBeforeItsTransferIsPosted) {
  for (const Algorithm algorithm : {Algorithm::kDirectExchange, Algorithm::kRecursiveDoubling,
                                    Algorithm::kDirectScatter, Algorithm::kRing}) {
    for (const std::uint64_t count : {100U, 30000U}) {
      Fleet fleet({.data_count = 3, .algorithm = algorithm});
      FleetTransfer work = Sum(count, 3, 4);
      const auto expected = work.Expected();
      const auto before = work.members().Content(2);
      fleet.Post(0, work.transfer());
      fleet.Post(1, work.transfer());
      fleet.RunToTheEnd();
      EXPECT_TRUE(fleet.completions(0).empty());
      EXPECT_EQ(work.members().Content(2), before);
      fleet.Post(2, work.transfer());
      fleet.RunToTheEnd();
      for (std::uint32_t node = 0; node < 3; ++node) {
        ASSERT_EQ(fleet.completions(node).size(), 1U);
        EXPECT_EQ(fleet.completions(node)[0].code, Code::kOk);
        EXPECT_EQ(fleet.node(node).counters().messages_dropped, 0U);
      }
    }
  }
}

TEST(Exchange, KeepsManyTransfersApartAndEndsThemAll) {
  Fleet fleet({.data_count = 3});
  std::vector<FleetTransfer> work;
  std::vector<std::vector<std::vector<std::byte>>> expected;
  const std::uint32_t count = fleet.node(0).capabilities().transfers_max;
  for (std::uint32_t i = 0; i < count; ++i) {
    work.emplace_back(i % 3 == 1 ? Collective::kBroadcast : Collective::kAllReduce, DType::kInt32,
                      Reduction::kSum, 10 + 997 * (i % 7), 3, 2 * i);
    expected.push_back(work.back().Expected());
  }
  // One node posts all at once, another as it goes, the third late.
  for (std::uint32_t i = 0; i < count; ++i) fleet.Post(0, work[i].transfer());
  for (std::uint32_t i = 0; i < count; ++i) {
    fleet.Post(1, work[i].transfer());
    for (int step = 0; step < 20; ++step) fleet.Step();
  }
  for (std::uint32_t i = 0; i < count; ++i) fleet.Post(2, work[i].transfer());
  fleet.RunToTheEnd();
  for (std::uint32_t node = 0; node < 3; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), count);
    for (const Completion& completion : fleet.completions(node)) {
      EXPECT_EQ(completion.code, Code::kOk);
    }
  }
  for (std::uint32_t i = 0; i < count; ++i) EXPECT_EQ(work[i].members().Contents(), expected[i]);
}

TEST(Exchange, AnswersBusyAndTakesNothingWhenAGroupIsFull) {
  Fleet fleet({});
  fleet.OpenGroup(2);
  const std::uint32_t most = fleet.node(0).capabilities().transfers_max;
  FleetTransfer work = Sum(10, 2, 0);
  for (std::uint32_t i = 0; i < most; ++i) {
    work.transfer().position = i;
    fleet.Post(0, work.transfer());
  }
  work.transfer().position = most;
  Transfer more = Fleet::Local(work.transfer(), 0);
  EXPECT_EQ(fleet.node(0).Post(more, 0), PostResult::kBusy);
  more.group = 2;  // another job's group is not full
  EXPECT_EQ(fleet.node(0).Post(more, 0), PostResult::kAccepted);
}

TEST(Exchange, EndsPostsToAnUnknownGroupAtOnceWithTheCause) {
  Fleet fleet({});
  FleetTransfer work = Sum(10, 2, 0);
  work.transfer().group = 9;
  fleet.Post(0, work.transfer());
  fleet.RunToTheEnd();
  ASSERT_EQ(fleet.completions(0).size(), 1U);
  EXPECT_EQ(fleet.completions(0)[0].code, Code::kUnavailable);
  EXPECT_TEXT(fleet.completions(0)[0].cause, "lane ucx0");
}

TEST(Exchange, MakesAtMostOneSumPerCall) {
  FleetOptions options{.algorithm = Algorithm::kDirectScatter};
  Fleet fleet(options);
  constexpr std::uint64_t kPieces = 40;
  FleetTransfer work = Sum(kPieces * 1024, 2, 0);
  fleet.PostEverywhere(work.transfer());
  std::uint64_t calls = 0;
  while (fleet.Step()) ++calls;
  EXPECT_GE(calls, kPieces / 2);  // each node sums half of them
  EXPECT_EQ(fleet.completions(0).size(), 1U);
}

TEST(Exchange, ServesGroupsInTurnSoThatOneThatHangsHoldsNobodyUp) {
  Fleet fleet({});
  fleet.OpenGroup(2);
  FleetTransfer hanging = Sum(100000, 2, 1);
  fleet.Post(0, hanging.transfer());  // node b never posts it
  std::vector<FleetTransfer> work;
  for (std::uint64_t i = 0; i < 10; ++i) {
    work.push_back(Sum(20000, 2, i));
    work.back().transfer().group = 2;
    work.back().transfer().token = 1000 + i;
    fleet.PostEverywhere(work.back().transfer());
  }
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.completions(0).size(), 10U);
  EXPECT_EQ(fleet.completions(1).size(), 10U);
  for (const Completion& completion : fleet.completions(0)) EXPECT_EQ(completion.code, Code::kOk);
}

TEST(Exchange, RefusesASecondGroupOfTheSameNumberOrKey) {
  Fleet fleet({});
  GroupOptions options{.group = 1, .key = 99, .members = {{"a", "simulated:a"}}};
  EXPECT_EQ(fleet.node(0).OpenGroup(options).code(), Code::kAlreadyExists);
  options.group = 2;
  options.key = KeyOf(1);
  EXPECT_EQ(fleet.node(0).OpenGroup(options).code(), Code::kAlreadyExists);
}

TEST(Exchange, NamesTheNodeWhoseAddressMakesNoSense) {
  Fleet fleet({});
  const std::size_t staging = fleet.network().staging_count();
  const GroupOptions options{
      .group = 2,
      .key = 99,
      .members = {{"a", "simulated:a"}, {"b", "simulated:b"}, {"z", "nowhere"}}};
  const Status opened = fleet.node(0).OpenGroup(options);
  ASSERT_EQ(opened.code(), Code::kUnavailable);
  EXPECT_TEXT(opened.error().text(), "node z");
  EXPECT_EQ(fleet.network().staging_count(), staging);
}

TEST(Exchange, GivesStagingBackWhenAGroupIsClosed) {
  Fleet fleet({.opens_group = false});
  for (std::uint32_t i = 1; i <= 100; ++i) {
    fleet.OpenGroup(i);
    EXPECT_EQ(fleet.network().staging_count(), 2U);
    fleet.node(0).CloseGroup(i, "done");
    fleet.node(1).CloseGroup(i, "done");
    fleet.RunToTheEnd();
    EXPECT_EQ(fleet.network().staging_count(), 0U);
  }
}

}  // namespace
}  // namespace headrace::transport
