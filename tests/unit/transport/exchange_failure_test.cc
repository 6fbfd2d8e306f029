// What is left of transfers when links fail, nodes vanish, and somebody cancels or closes.
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

// Runs a fleet and watches that memory keeps still from a node's completion on.
class Watch {
 public:
  Watch(Fleet& fleet, FleetTransfer& work, std::uint32_t data_count)
      : fleet_(fleet), work_(work), at_end_(data_count) {}

  bool Step() {
    const bool more = fleet_.Step();
    for (std::uint32_t node = 0; node < at_end_.size(); ++node) {
      if (at_end_[node] || fleet_.completions(node).empty()) continue;
      at_end_[node] = work_.members().Content(node);
    }
    return more;
  }
  void RunToTheEnd() {
    while (Step()) {
    }
  }
  // Exactly one completion each, and nothing written after it.
  void ExpectEnded(const std::string& where) {
    for (std::uint32_t node = 0; node < at_end_.size(); ++node) {
      ASSERT_EQ(fleet_.completions(node).size(), 1U) << where << " node " << node;
      ASSERT_EQ(work_.members().Content(node), *at_end_[node]) << where << " node " << node;
    }
    ASSERT_TRUE(work_.members().GuardsAreWhole()) << where;
  }

 private:
  Fleet& fleet_;
  FleetTransfer& work_;
  std::vector<std::optional<std::vector<std::byte>>> at_end_;
};

struct Sweep {
  std::string name;
  FleetOptions fleet;
  Collective kind = Collective::kAllReduce;

  friend void PrintTo(const Sweep& sweep, std::ostream* out) { *out << sweep.name; }
};

std::vector<Sweep> AllSweeps() {
  const SimulatedNetworkOptions network{
      .jitter_ns = 30 * kMicrosecond, .eager_size = 1000, .closes_are_told = true};
  const auto among = [&network](std::uint32_t data, std::uint32_t servers, Algorithm algorithm) {
    return FleetOptions{
        .data_count = data, .servers_count = servers, .algorithm = algorithm, .network = network};
  };
  return {{"Exchange", among(3, 0, Algorithm::kDirectExchange)},
          {"Doubling", among(3, 0, Algorithm::kRecursiveDoubling)},
          {"Scatter", among(3, 0, Algorithm::kDirectScatter)},
          {"Ring", among(3, 0, Algorithm::kRing)},
          {"Served", among(3, 1, Algorithm::kAuto)},
          {"ServedReduce", among(3, 1, Algorithm::kAuto), Collective::kReduce},
          {"Reduce", among(3, 0, Algorithm::kAuto), Collective::kReduce},
          {"Broadcast", among(3, 0, Algorithm::kDirectExchange), Collective::kBroadcast},
          {"BroadcastByOwners", among(3, 0, Algorithm::kDirectScatter), Collective::kBroadcast},
          {"Barrier", among(3, 0, Algorithm::kAuto), Collective::kBarrier}};
}

class ExchangeFailure : public ::testing::TestWithParam<Sweep> {
 protected:
  static constexpr std::uint64_t kCount = 3000;  // of int32: three pieces

  static FleetTransfer Work() {
    return {
        GetParam().kind, DType::kInt32, Reduction::kSum, kCount, GetParam().fleet.data_count, 4};
  }

  // Does `fault` after each number of announced messages in turn, until one that never comes.
  template <typename Fault, typename Check>
  void ForEachMessage(Fault fault, Check check) {
    for (std::uint64_t messages = 0;; ++messages) {
      ASSERT_LT(messages, 1000U);
      Fleet fleet(GetParam().fleet);
      FleetTransfer work = Work();
      const Contents expected = work.Expected();
      Watch watch(fleet, work, GetParam().fleet.data_count);
      fleet.PostEverywhere(work.transfer());
      bool more = true;
      while (more && fleet.network().announced_count() < messages) more = watch.Step();
      if (!more) return;
      fault(fleet);
      watch.RunToTheEnd();
      ASSERT_NO_FATAL_FAILURE(check(fleet, watch, work, expected));
    }
  }
};

TEST_P(ExchangeFailure, OfALinkEndsEveryTransferByNameWheneverItComes) {
  ForEachMessage([](Fleet& fleet) { fleet.network().Cut("a", "b", Silence::kTold); },
                 [](Fleet& fleet, Watch& watch, FleetTransfer& work, const Contents& expected) {
                   ASSERT_NO_FATAL_FAILURE(watch.ExpectEnded("cut"));
                   for (std::uint32_t node = 0; node < expected.size(); ++node) {
                     const Completion& completion = fleet.completions(node)[0];
                     if (completion.code == Code::kOk) {
                       ASSERT_EQ(work.members().Content(node), expected[node]);
                       continue;
                     }
                     ASSERT_EQ(completion.code, Code::kPeerLost);
                     ASSERT_NE(completion.cause.find("ucx0"), std::string::npos)
                         << completion.cause;
                   }
                   ASSERT_EQ(fleet.network().open_count(), 0U);
                 });
}

TEST_P(ExchangeFailure, OfANodeEndsTheOthersTransfersAndNamesIt) {
  ForEachMessage(
      [](Fleet& fleet) {
        fleet.network().Vanish("b", Silence::kTold);
        fleet.Forget(1);
      },
      [](Fleet& fleet, Watch&, FleetTransfer& work, const Contents& expected) {
        for (const std::uint32_t node : {0U, 2U}) {
          ASSERT_EQ(fleet.completions(node).size(), 1U);
          const Completion& completion = fleet.completions(node)[0];
          if (completion.code == Code::kOk) {
            ASSERT_EQ(work.members().Content(node), expected[node]);
          } else {
            ASSERT_EQ(completion.cause, "node b: link over ucx0 failed: simulated end of the node");
          }
        }
      });
}

// Nobody hears of anything: it is for others to find out and to close the group.
TEST_P(ExchangeFailure, InSilenceWaitsForTheGroupToBeClosed) {
  ForEachMessage([](Fleet& fleet) { fleet.network().Cut("a", "b", Silence::kSilent); },
                 [](Fleet& fleet, Watch& watch, FleetTransfer&, const Contents& expected) {
                   for (std::uint32_t node = 0; node < fleet.nodes_count(); ++node) {
                     fleet.node(node).CloseGroup(1, "node b does not answer");
                   }
                   watch.RunToTheEnd();
                   ASSERT_NO_FATAL_FAILURE(watch.ExpectEnded("silence"));
                   for (std::uint32_t node = 0; node < expected.size(); ++node) {
                     const Completion& completion = fleet.completions(node)[0];
                     if (completion.code == Code::kOk) continue;
                     ASSERT_EQ(completion.code, Code::kCancelled);
                     ASSERT_EQ(completion.cause, "node b does not answer");
                   }
                   ASSERT_EQ(fleet.network().open_count(), 0U);
                   ASSERT_EQ(fleet.network().staging_count(), 0U);
                 });
}

TEST_P(ExchangeFailure, OfACancelEndsTheTransferOnAllNodes) {
  const std::uint64_t token = Work().transfer().token;
  ForEachMessage([token](Fleet& fleet) { fleet.node(2).Cancel(token); },
                 [](Fleet& fleet, Watch& watch, FleetTransfer&, const Contents& expected) {
                   ASSERT_NO_FATAL_FAILURE(watch.ExpectEnded("cancel"));
                   const Code own = fleet.completions(2)[0].code;
                   ASSERT_TRUE(own == Code::kOk || own == Code::kCancelled);
                   for (std::uint32_t node = 0; node < expected.size(); ++node) {
                     if (fleet.completions(node)[0].code != Code::kPeerLost) continue;
                     ASSERT_FALSE(fleet.completions(node)[0].cause.empty());
                   }
                   ASSERT_EQ(fleet.network().open_count(), 0U);
                 });
}

TEST_P(ExchangeFailure, MayBeTheEndOfTheExchangeItself) {
  ForEachMessage(
      [](Fleet& fleet) {
        fleet.network().Vanish("c", Silence::kTold);
        fleet.Destroy(2);
      },
      [](Fleet& fleet, Watch&, FleetTransfer&, const Contents&) {
        ASSERT_EQ(fleet.completions(0).size(), 1U);
        ASSERT_EQ(fleet.completions(1).size(), 1U);
      });
}

// As over a wire that tells nobody of a close: what one node finds out, the others' groups are
// closed with.
TEST_P(ExchangeFailure, OfOneNodeIsEverybodysOnceTheirGroupsAreClosed) {
  for (std::uint64_t messages = 0;; ++messages) {
    FleetOptions options = GetParam().fleet;
    options.network.closes_are_told = false;
    Fleet fleet(options);
    FleetTransfer work = Work();
    Watch watch(fleet, work, options.data_count);
    fleet.PostEverywhere(work.transfer());
    bool more = true;
    while (more && fleet.network().announced_count() < messages) more = watch.Step();
    if (!more) return;
    fleet.node(1).CloseGroup(1, "rank 3 exited");
    watch.RunToTheEnd();
    fleet.node(0).CloseGroup(1, "node b: rank 3 exited");
    watch.RunToTheEnd();
    for (std::uint32_t node = 2; node < fleet.nodes_count(); ++node) {
      fleet.node(node).CloseGroup(1, "node b: rank 3 exited");
    }
    watch.RunToTheEnd();
    ASSERT_NO_FATAL_FAILURE(watch.ExpectEnded("closed"));
    ASSERT_EQ(fleet.network().open_count(), 0U) << messages;
    ASSERT_EQ(fleet.network().staging_count(), 0U) << messages;
  }
}

INSTANTIATE_TEST_SUITE_P(In, ExchangeFailure, ::testing::ValuesIn(AllSweeps()),
                         [](const auto& test) { return test.param.name; });

FleetTransfer SumOf2(std::uint64_t count, std::uint64_t position) {
  return {Collective::kAllReduce, DType::kFloat32, Reduction::kSum, count, 2, position};
}

TEST(ExchangeAfterAFailure, EndsLaterPostsAtOnceWithTheSameCause) {
  Fleet fleet({});
  fleet.network().Cut("a", "b", Silence::kTold);
  fleet.RunToTheEnd();
  for (std::uint64_t position = 1; position < 4; ++position) {
    FleetTransfer work = SumOf2(100, position);
    fleet.ClearCompletions();
    fleet.Post(0, work.transfer());
    fleet.RunToTheEnd();
    ASSERT_EQ(fleet.completions(0).size(), 1U);
    EXPECT_EQ(fleet.completions(0)[0].code, Code::kPeerLost);
    EXPECT_EQ(fleet.completions(0)[0].cause, "node b: link over ucx0 failed: simulated cut");
  }
}

TEST(ExchangeAfterAFailure, LeavesOtherGroupsAlone) {
  Fleet fleet({.network = {.closes_are_told = true}});
  fleet.OpenGroup(2);
  FleetTransfer lost = SumOf2(100000, 1);
  FleetTransfer kept = SumOf2(100000, 1);
  kept.transfer().group = 2;
  kept.transfer().token = 7;
  const auto expected = kept.Expected();
  fleet.PostEverywhere(lost.transfer());
  fleet.PostEverywhere(kept.transfer());
  for (int i = 0; i < 20; ++i) fleet.Step();
  fleet.node(0).CloseGroup(1, "the job was cancelled");
  fleet.RunToTheEnd();
  for (std::uint32_t node = 0; node < 2; ++node) {
    ASSERT_EQ(fleet.completions(node).size(), 2U);
    for (const Completion& completion : fleet.completions(node)) {
      EXPECT_EQ(completion.code == Code::kOk, completion.token == 7);
    }
  }
  EXPECT_EQ(kept.members().Contents(), expected);
}

TEST(ExchangeAfterAFailure, CanOpenTheGroupAnew) {
  Fleet fleet({});
  fleet.network().Cut("a", "b", Silence::kTold);
  fleet.RunToTheEnd();
  fleet.node(0).CloseGroup(1, "");
  fleet.node(1).CloseGroup(1, "");
  fleet.RunToTheEnd();
  EXPECT_EQ(fleet.network().staging_count(), 0U);
  fleet.OpenGroup(1);
  EXPECT_EQ(fleet.network().staging_count(), 2U);
}

// A node that has finished may close its links before this one has looked at its last message.
TEST(ExchangeAfterAFailure, HasFinishedWhatHadArrived) {
  Fleet fleet({.algorithm = Algorithm::kDirectExchange, .network = {.closes_are_told = true}});
  FleetTransfer work = SumOf2(500, 1);
  const auto expected = work.Expected();
  fleet.PostEverywhere(work.transfer());
  SimulatedNetwork& network = fleet.network();
  std::vector<Completion> a;
  std::vector<Completion> b;
  const auto advance = [&network] { network.AdvanceTo(network.now() + kMillisecond); };
  for (int i = 0; i < 2; ++i) {  // sends; is announced and accepted
    while (fleet.node(0).DoWork(network.now(), a)) {
    }
    while (fleet.node(1).DoWork(network.now(), b)) {
    }
    if (i == 0) advance();
  }
  advance();  // the bytes are there; b does not look
  while (fleet.node(0).DoWork(network.now(), a)) {
  }
  ASSERT_EQ(a.size(), 1U);
  ASSERT_TRUE(b.empty());
  fleet.node(0).CloseGroup(1, "done");
  while (fleet.node(0).DoWork(network.now(), a)) {
  }
  advance();
  while (fleet.node(1).DoWork(network.now(), b)) {
  }
  ASSERT_EQ(b.size(), 1U);
  EXPECT_EQ(b[0].code, Code::kOk) << b[0].cause;
  EXPECT_EQ(work.members().Contents(), expected);
  fleet.RunToTheEnd();
  work.transfer().position = 2;
  fleet.Post(1, work.transfer());
  fleet.RunToTheEnd();
  ASSERT_EQ(fleet.completions(1).size(), 1U);  // the link is lost all the same
  EXPECT_EQ(fleet.completions(1)[0].code, Code::kPeerLost);
}

}  // namespace
}  // namespace headrace::transport
