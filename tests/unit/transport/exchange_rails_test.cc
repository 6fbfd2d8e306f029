// Collectives over two rails, of which one fails, falls silent, stalls and comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "tests/unit/transport/exchange_fleet.h"

namespace headrace::transport {
namespace {

constexpr TimeNs kSwitchMax = 200 * kMillisecond;
constexpr std::size_t kPieceSize = std::size_t{64} << 10;  // more than is copied

FleetOptions Options(std::uint32_t data_count, std::uint32_t rails_count = 2) {
  return {.data_count = data_count,
          .exchange = {.piece_size = kPieceSize, .staging_size = std::size_t{8} << 20},
          .network = {.ns_per_byte = kNsPerByte, .eager_size = kPieceSize},
          .rails_count = rails_count};
}

// Sums of float32, whose bits depend on the order, and what they are without any fault.
class Sums {
 public:
  Sums(std::uint32_t data_count, std::uint32_t count, std::uint64_t elements)
      : data_count_(data_count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      work_.emplace_back(Collective::kAllReduce, DType::kFloat32, Reduction::kSum, elements,
                         data_count, 1 + i);
      plain_.emplace_back(Collective::kAllReduce, DType::kFloat32, Reduction::kSum, elements,
                          data_count, 1 + i);
    }
    Fleet fleet(Options(data_count, 1));
    for (auto& each : plain_) fleet.PostEverywhere(each.transfer());
    fleet.RunToTheEnd();
  }

  void Post(Fleet& fleet) {
    for (auto& each : work_) fleet.PostEverywhere(each.transfer());
  }
  bool HaveEnded(const Fleet& fleet) const { return fleet.AllHaveEnded(work_.size()); }
  // Each once, well, with the same bits as without a fault, and nothing written beside them.
  void Check(const Fleet& fleet) {
    for (std::uint32_t node = 0; node < data_count_; ++node) {
      ASSERT_EQ(fleet.completions(node).size(), work_.size());
      for (const Completion& completion : fleet.completions(node)) {
        ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
      }
      for (std::size_t i = 0; i < work_.size(); ++i) {
        ASSERT_EQ(work_[i].members().Content(node), plain_[i].members().Content(node)) << i;
      }
    }
    for (auto& each : work_) ASSERT_TRUE(each.members().GuardsAreWhole());
  }

 private:
  std::uint32_t data_count_;
  std::vector<FleetTransfer> work_;
  std::vector<FleetTransfer> plain_;
};

void RunTo(Fleet& fleet, TimeNs until) {
  while (fleet.network().now() < until && fleet.Step()) {
  }
}

// False when they have not within that time.
bool RunUntilEnded(Fleet& fleet, const Sums& sums, TimeNs within) {
  const TimeNs last = fleet.network().now() + within;
  while (!sums.HaveEnded(fleet) && fleet.network().now() <= last && fleet.Step()) {
  }
  return sums.HaveEnded(fleet);
}

std::vector<MovedLink> MovesOf(Fleet& fleet, std::uint32_t node) {
  std::vector<MovedLink> moves;
  fleet.node(node).DrainMoves(moves);
  return moves;
}

std::uint64_t Resent(const std::vector<MovedLink>& moves) {
  std::uint64_t messages = 0;
  for (const MovedLink& moved : moves) messages += moved.move.messages;
  return messages;
}

struct Cut {
  const char* name;
  std::uint32_t nodes;
  Silence silence;
  bool one_way;

  friend void PrintTo(const Cut& cut, std::ostream* out) { *out << cut.name; }
};

class ExchangeRailCut : public ::testing::TestWithParam<Cut> {};

// All of a megabyte's messages take 8 ms a node at 1 Gbit/s: the cut comes in each part of that.
TEST_P(ExchangeRailCut, LosesNothingWhenARailIsCutAtAnyTime) {
  const Cut& cut = GetParam();
  std::uint64_t resent = 0;
  for (TimeNs at = 0; at < 12 * kMillisecond; at += 700 * kMicrosecond) {
    Fleet fleet(Options(cut.nodes));
    Sums sums(cut.nodes, 3, 100'000);
    sums.Post(fleet);
    RunTo(fleet, at);
    if (cut.one_way) {
      fleet.network().CutOneWay("a", "b", cut.silence);
    } else {
      fleet.CutRail(0, 1, 0, cut.silence);
    }
    const TimeNs before = fleet.network().now();
    ASSERT_TRUE(RunUntilEnded(fleet, sums, 30 * kSecond)) << at;
    // Until the switch, and then what is left of the transfers.
    EXPECT_LE(fleet.network().now() - before, kSwitchMax + 20 * kMillisecond) << at;
    ASSERT_NO_FATAL_FAILURE(sums.Check(fleet)) << at;
    resent += Resent(MovesOf(fleet, 0)) + Resent(MovesOf(fleet, 1));
  }
  EXPECT_GT(resent, 10U);
}

INSTANTIATE_TEST_SUITE_P(All, ExchangeRailCut,
                         ::testing::Values(Cut{"told", 2, Silence::kTold, false},
                                           Cut{"silent", 2, Silence::kSilent, false},
                                           Cut{"one_way", 2, Silence::kSilent, true},
                                           Cut{"told_of_three", 3, Silence::kTold, false},
                                           Cut{"silent_of_four", 4, Silence::kSilent, false}),
                         [](const auto& cut) { return std::string(cut.param.name); });

TEST(ExchangeRails, SaysWhichRailWasLeftForWhichAndWhatWasSentAgain) {
  Fleet fleet(Options(2));
  Sums sums(2, 2, 200'000);
  sums.Post(fleet);
  RunTo(fleet, 2 * kMillisecond);
  fleet.CutRail(0, 1, 0, Silence::kSilent);
  ASSERT_TRUE(RunUntilEnded(fleet, sums, kSecond));
  const auto moves = MovesOf(fleet, 0);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].group, 1U);
  EXPECT_EQ(moves[0].member, 1U);
  EXPECT_FALSE(moves[0].move.cause.empty());
  EXPECT_GT(moves[0].move.messages, 0U);
  EXPECT_GT(moves[0].move.bytes, kPieceSize / 2);
  EXPECT_TRUE(MovesOf(fleet, 0).empty());
}

// A stall of 2 s, after which what it held back arrives though it was sent again.
TEST(ExchangeRails, GoesOnWhileARailStallsAndDropsWhatItBringsLater) {
  Fleet fleet(Options(2));
  Sums sums(2, 3, 200'000);
  sums.Post(fleet);
  RunTo(fleet, 2 * kMillisecond);
  fleet.network().Dam("a", "b");
  fleet.network().Dam("b", "a");
  const TimeNs stalled = fleet.network().now();
  ASSERT_TRUE(RunUntilEnded(fleet, sums, kSecond));
  EXPECT_LE(fleet.network().now() - stalled, kSwitchMax + 40 * kMillisecond);
  RunTo(fleet, stalled + 2 * kSecond);
  fleet.network().LetFlow("a", "b");
  fleet.network().LetFlow("b", "a");
  RunTo(fleet, stalled + 5 * kSecond);
  ASSERT_NO_FATAL_FAILURE(sums.Check(fleet));
  // Its pings were answered when it went on.
  ASSERT_FALSE(fleet.rails(0).Names().empty());
  const std::uint64_t before = fleet.network().BytesOf("a", "b", KeyOf(1));
  Sums more(2, 1, 100'000);
  fleet.ClearCompletions();
  FleetTransfer late(Collective::kAllReduce, DType::kInt32, Reduction::kSum, 50'000, 2, 9);
  const auto expected = late.Expected();
  fleet.PostEverywhere(late.transfer());
  while (!fleet.AllHaveEnded(1) && fleet.Step()) {
  }
  EXPECT_EQ(late.members().Contents(), expected);
  EXPECT_GT(fleet.network().BytesOf("a", "b", KeyOf(1)), before);
}

TEST(ExchangeRails, DropsLateDuplicatesOfWhatWasSentAgain) {
  std::uint64_t dropped = 0;
  for (TimeNs at = kMillisecond; at < 6 * kMillisecond; at += kMillisecond) {
    Fleet fleet(Options(2));
    Sums sums(2, 3, 200'000);
    sums.Post(fleet);
    RunTo(fleet, at);
    // Acknowledgements are lost, the messages are not.
    fleet.network().CutOneWay("b", "a", Silence::kSilent);
    ASSERT_TRUE(RunUntilEnded(fleet, sums, kSecond)) << at;
    ASSERT_NO_FATAL_FAILURE(sums.Check(fleet)) << at;
    dropped +=
        fleet.node(0).counters().messages_dropped + fleet.node(1).counters().messages_dropped;
  }
  EXPECT_GT(dropped, 0U);
}

TEST(ExchangeRails, UsesARailAgainWhenItIsBack) {
  for (const Silence silence : {Silence::kTold, Silence::kSilent}) {
    Fleet fleet(Options(2));
    Sums sums(2, 2, 200'000);
    sums.Post(fleet);
    RunTo(fleet, 2 * kMillisecond);
    fleet.CutRail(0, 1, 0, silence);
    ASSERT_TRUE(RunUntilEnded(fleet, sums, kSecond));
    MovesOf(fleet, 0);
    RunTo(fleet, 3 * kSecond);
    EXPECT_TRUE(MovesOf(fleet, 0).empty());  // it is down, and was told of once
    fleet.MendRail(0, 1, 0);
    RunTo(fleet, 12 * kSecond);
    const auto moves = MovesOf(fleet, 0);
    ASSERT_EQ(moves.size(), 1U);
    EXPECT_TRUE(moves[0].move.cause.empty());
    fleet.ClearCompletions();
    const std::uint64_t first = fleet.network().BytesOf("a", "b", KeyOf(1));
    const std::uint64_t second = fleet.network().BytesOf("a1", "b1", KeyOf(1));
    FleetTransfer more(Collective::kAllReduce, DType::kInt32, Reduction::kSum, 50'000, 2, 9);
    const auto expected = more.Expected();
    fleet.PostEverywhere(more.transfer());
    fleet.RunToTheEnd();
    EXPECT_EQ(more.members().Contents(), expected);
    EXPECT_GT(fleet.network().BytesOf("a", "b", KeyOf(1)), first + 100'000);
    EXPECT_EQ(fleet.network().BytesOf("a1", "b1", KeyOf(1)), second);
  }
}

TEST(ExchangeRails, TakesTheThirdWhenTheSecondFailsToo) {
  Fleet fleet(Options(2, 3));
  Sums sums(2, 4, 400'000);
  sums.Post(fleet);
  RunTo(fleet, 2 * kMillisecond);
  fleet.CutRail(0, 1, 0, Silence::kTold);
  RunTo(fleet, 10 * kMillisecond);
  fleet.CutRail(0, 1, 1, Silence::kSilent);
  ASSERT_TRUE(RunUntilEnded(fleet, sums, kSecond));
  ASSERT_NO_FATAL_FAILURE(sums.Check(fleet));
}

TEST(ExchangeRails, FailsTheGroupWhenEveryRailHasAndNamesEach) {
  Fleet fleet(Options(2));
  Sums sums(2, 2, 200'000);
  sums.Post(fleet);
  RunTo(fleet, 2 * kMillisecond);
  fleet.CutRail(0, 1, 0, Silence::kTold);
  fleet.CutRail(0, 1, 1, Silence::kTold);
  // The second is told of when it is used, as a refused connection is.
  for (int i = 0; i < 100 && !sums.HaveEnded(fleet); ++i) {
    RunTo(fleet, fleet.network().now() + kMillisecond);
    fleet.CutRail(0, 1, 1, Silence::kTold);
  }
  ASSERT_TRUE(sums.HaveEnded(fleet));
  for (std::uint32_t node = 0; node < 2; ++node) {
    for (const Completion& completion : fleet.completions(node)) {
      EXPECT_EQ(completion.code, Code::kPeerLost);
      EXPECT_FALSE(completion.cause.empty());
    }
  }
  for (std::uint32_t node = 0; node < 2; ++node) fleet.node(node).CloseGroup(1, "over");
  RunTo(fleet, fleet.network().now() + 10 * kSecond);
  EXPECT_EQ(fleet.network().open_count(), 0U);
  EXPECT_EQ(fleet.network().staging_count(), 0U);
  EXPECT_EQ(fleet.rails(0).links_count(), 0U);
}

// Whether it is a peer that stands still, only the control connection knows.
TEST(ExchangeRails, DoesNotBlameTheRailOfAPeerThatStandsStill) {
  Fleet fleet(Options(2));
  Sums sums(2, 2, 200'000);
  sums.Post(fleet);
  RunTo(fleet, 2 * kMillisecond);
  const TimeNs until = fleet.network().now() + 3 * kSecond;
  std::vector<Completion> completions;
  while (fleet.network().now() < until) {
    if (fleet.node(0).DoWork(fleet.network().now(), completions)) continue;
    const TimeNs due = std::min(fleet.network().NextDue(), fleet.node(0).NextLook());
    fleet.network().AdvanceTo(std::min(due, until));
  }
  EXPECT_TRUE(completions.empty());
  ASSERT_TRUE(RunUntilEnded(fleet, sums, kSecond));
  ASSERT_NO_FATAL_FAILURE(sums.Check(fleet));
  EXPECT_TRUE(MovesOf(fleet, 0).empty());
  EXPECT_TRUE(MovesOf(fleet, 1).empty());
}

// A node that is done closes its links, while the rail loses what it sent last, or the word that
// the other's has come.
TEST(ExchangeRails, LetsTheOthersEndWhenTheFirstThatIsDoneClosesItsLinks) {
  for (const std::uint64_t elements : {200ULL, 60'000ULL}) {
    for (TimeNs at = 0; at < 4 * kMillisecond; at += 200 * kMicrosecond) {
      Fleet fleet(Options(2));
      Sums sums(2, 1, elements);
      sums.Post(fleet);
      RunTo(fleet, at);
      fleet.CutRail(0, 1, 0, Silence::kSilent);
      std::vector<bool> closed(2);
      while (!sums.HaveEnded(fleet) && fleet.network().now() < kSecond && fleet.Step()) {
        for (std::uint32_t node = 0; node < 2; ++node) {
          if (closed[node] || fleet.completions(node).empty()) continue;
          closed[node] = true;
          fleet.node(node).CloseGroup(1, "the job is over");
        }
      }
      ASSERT_TRUE(sums.HaveEnded(fleet)) << elements << " elements, cut at " << at;
      ASSERT_NO_FATAL_FAILURE(sums.Check(fleet)) << at;
      for (std::uint32_t node = 0; node < 2; ++node) {
        if (!closed[node]) fleet.node(node).CloseGroup(1, "the job is over");
      }
      RunTo(fleet, fleet.network().now() + 10 * kSecond);
      ASSERT_EQ(fleet.rails(0).links_count() + fleet.rails(1).links_count(), 0U);
      ASSERT_EQ(fleet.network().open_count(), 0U);
    }
  }
}

TEST(ExchangeRails, SleepsWhenNothingIsUnderWay) {
  Fleet fleet(Options(3));
  Sums sums(3, 2, 20'000);
  sums.Post(fleet);
  fleet.RunToTheEnd();
  ASSERT_NO_FATAL_FAILURE(sums.Check(fleet));
  for (std::uint32_t node = 0; node < 3; ++node) EXPECT_EQ(fleet.node(node).NextLook(), kNever);
  EXPECT_LT(fleet.network().now(), kSecond);
}

// Faults of one rail after the other, between any two nodes, while other transfers go on.
class Trial {
 public:
  explicit Trial(std::uint64_t seed) : dice_(seed), fleet_(MakeOptions(seed)) {
    constexpr Collective kKinds[] = {Collective::kAllReduce, Collective::kAllReduce,
                                     Collective::kReduce, Collective::kBroadcast,
                                     Collective::kBarrier};
    for (std::uint32_t i = 0; i < kTransfers; ++i) {
      const std::uint64_t count = Roll(3) == 0 ? Roll(60'000) : Roll(500);
      work_.emplace_back(kKinds[Roll(5)], DType::kInt32, Reduction::kSum, count, data_count_,
                         3 * i + Roll(3));
      expected_.push_back(work_.back().Expected());
    }
  }

  void Run() {
    std::vector<std::uint32_t> posted(data_count_);
    TimeNs next_fault = static_cast<TimeNs>(Roll(5)) * kMillisecond;
    while (!fleet_.AllHaveEnded(kTransfers)) {
      if (fleet_.network().now() >= next_fault) next_fault = FaultOrMend();
      for (std::uint32_t node = 0; node < data_count_; ++node) {
        if (posted[node] < kTransfers && Roll(8) == 0) {
          fleet_.Post(node, work_[posted[node]++].transfer());
        }
      }
      ASSERT_LT(fleet_.network().now(), 120 * kSecond);
      if (!fleet_.Step()) fleet_.network().AdvanceTo(fleet_.network().now() + kMillisecond);
    }
    for (std::size_t i = 0; i < work_.size(); ++i) {
      for (std::uint32_t node = 0; node < data_count_; ++node) {
        ASSERT_EQ(work_[i].members().Content(node), expected_[i][node]) << i << " on " << node;
        ASSERT_EQ(fleet_.completions(node)[i].code, Code::kOk) << fleet_.completions(node)[i].cause;
      }
      ASSERT_TRUE(work_[i].members().GuardsAreWhole());
    }
  }

  void Close() {
    if (fault_) FaultOrMend();
    for (std::uint32_t node = 0; node < fleet_.nodes_count(); ++node) {
      fleet_.node(node).CloseGroup(1, "the test is over");
    }
    RunTo(fleet_, fleet_.network().now() + 30 * kSecond);
    for (std::uint32_t node = 0; node < fleet_.nodes_count(); ++node) {
      ASSERT_EQ(fleet_.rails(node).links_count(), 0U);
      resent_ += Resent(MovesOf(fleet_, node));
    }
    ASSERT_EQ(fleet_.network().open_count(), 0U);
    ASSERT_EQ(fleet_.network().staging_count(), 0U);
  }

  std::uint64_t resent() const { return resent_; }

 private:
  static constexpr std::uint32_t kTransfers = 12;
  struct Fault {
    std::uint32_t one = 0;
    std::uint32_t other = 0;
    std::size_t rail = 0;
    bool dams = false;
  };

  std::uint64_t Roll(std::uint64_t sides) { return dice_() % sides; }

  FleetOptions MakeOptions(std::uint64_t seed) {
    data_count_ = static_cast<std::uint32_t>(2 + Roll(4));
    FleetOptions options = Options(data_count_, static_cast<std::uint32_t>(2 + Roll(2)));
    constexpr TimeNs kJitters[] = {0, 5 * kMicrosecond, 200 * kMicrosecond, 5 * kMillisecond};
    constexpr std::size_t kPieces[] = {4096, kPieceSize};
    options.servers_count = static_cast<std::uint32_t>(Roll(2) == 0 ? 0 : Roll(3));
    options.algorithm = static_cast<Algorithm>(Roll(5));
    options.exchange.piece_size = kPieces[Roll(2)];
    options.network.seed = seed;
    options.network.jitter_ns = kJitters[Roll(4)];
    options.network.duplicate_share = Roll(3) == 0 ? 0.2 : 0;
    return options;
  }

  // When the next is due. One rail at a time: between two nodes there is always one that works.
  TimeNs FaultOrMend() {
    SimulatedNetwork& network = fleet_.network();
    const TimeNs now = network.now();
    if (fault_) {
      const std::string one = Fleet::RailName(fault_->one, fault_->rail);
      const std::string other = Fleet::RailName(fault_->other, fault_->rail);
      if (fault_->dams) {
        network.LetFlow(one, other);
      } else {
        network.Mend(one, other);
      }
      fault_.reset();
      // Until it is back in use, the other one stays.
      return now + static_cast<TimeNs>(20 + Roll(20)) * kSecond;
    }
    const auto one = static_cast<std::uint32_t>(Roll(fleet_.nodes_count()));
    fault_ = Fault{.one = one,
                   .other = (one + 1) % fleet_.nodes_count(),
                   .rail = Roll(3) == 0 ? std::size_t{1} : std::size_t{0},
                   .dams = Roll(3) == 0};
    const std::string from = Fleet::RailName(fault_->one, fault_->rail);
    const std::string to = Fleet::RailName(fault_->other, fault_->rail);
    const Silence silence = Roll(2) == 0 ? Silence::kTold : Silence::kSilent;
    if (fault_->dams) {
      network.Dam(from, to);
    } else if (Roll(3) == 0) {
      network.CutOneWay(from, to, silence);
    } else {
      network.Cut(from, to, silence);
    }
    return now + static_cast<TimeNs>(1 + Roll(3000)) * kMillisecond;
  }

  std::mt19937_64 dice_;
  std::uint32_t data_count_ = 0;
  Fleet fleet_;
  std::vector<FleetTransfer> work_;
  std::vector<std::vector<std::vector<std::byte>>> expected_;
  std::optional<Fault> fault_;
  std::uint64_t resent_ = 0;
};

TEST(ExchangeRailsAtRandom, EndEachTransferWellWhateverOneRailDoes) {
  std::uint64_t resent = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Trial trial(seed);
    ASSERT_NO_FATAL_FAILURE(trial.Run()) << "seed " << seed;
    ASSERT_NO_FATAL_FAILURE(trial.Close()) << "seed " << seed;
    resent += trial.resent();
  }
  EXPECT_GT(resent, 50U);
}

}  // namespace
}  // namespace headrace::transport
