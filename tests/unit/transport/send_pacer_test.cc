// Whose message goes next, as arithmetic: no wire and no group.
#include "transport/exchange/send_pacer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace headrace::transport {
namespace {

constexpr std::size_t kPiece = 1000;
constexpr std::size_t kItemsMax = 100;
// Room for two pieces toward a peer.
constexpr std::size_t kRoom = 2 * kPiece;

class Bench {
 public:
  Bench() : pacer(kRoom) {}

  SendPacer::FlowId Open(std::uint16_t group, const std::string& peer, const Share& share = {}) {
    const SendPacer::FlowId flow = pacer.OpenFlow(group, 7, peer, kItemsMax);
    pacer.SetShare(group, share);
    flows[group][peer] = flow;
    return flow;
  }
  void Push(SendPacer::FlowId flow, int count, std::size_t size = kPiece) {
    for (int i = 0; i < count; ++i) pacer.Push(flow, 5, size);
  }
  // The groups of all messages that have room now.
  std::vector<int> Take() {
    std::vector<int> groups;
    while (const auto turn = pacer.Next()) groups.push_back(turn->group);
    return groups;
  }

  SendPacer pacer;
  std::map<int, std::map<std::string, SendPacer::FlowId>> flows;
};

TEST(SendPacer, LetsEverythingPassInItsOrderWhileThereIsRoom) {
  Bench bench;
  const auto flow = bench.pacer.OpenFlow(3, 7, "b", kItemsMax);
  EXPECT_FALSE(bench.pacer.Next());
  bench.pacer.Push(flow, 41, 10);
  bench.pacer.Push(flow, 42, 0);
  const auto first = bench.pacer.Next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->group, 3);
  EXPECT_EQ(first->member, 7);
  EXPECT_EQ(first->item, 41);
  EXPECT_EQ(bench.pacer.Next()->item, 42);
  EXPECT_FALSE(bench.pacer.Next());
}

TEST(SendPacer, KeepsBackWhatAPeerHasNoRoomForUntilSomethingHasEnded) {
  Bench bench;
  const auto flow = bench.Open(0, "b");
  bench.Push(flow, 5);
  EXPECT_EQ(bench.Take().size(), 2U);
  EXPECT_TRUE(bench.Take().empty());
  bench.pacer.Ended(flow, kPiece);
  EXPECT_EQ(bench.Take().size(), 1U);
}

TEST(SendPacer, GivesAMessageLargerThanItsRoomToAPeerThatHasNothing) {
  Bench bench;
  const auto flow = bench.Open(0, "b");
  bench.Push(flow, 2, 10 * kRoom);
  EXPECT_EQ(bench.Take().size(), 1U);
  bench.pacer.Ended(flow, 10 * kRoom);
  EXPECT_EQ(bench.Take().size(), 1U);
}

TEST(SendPacer, HoldsNobodyUpForAPeerThatTakesNothing) {
  Bench bench;
  const auto to_b = bench.Open(0, "b");
  const auto to_c = bench.Open(0, "c");
  bench.Push(to_b, 50);
  EXPECT_EQ(bench.Take().size(), 2U);
  for (int i = 0; i < 50; ++i) {
    bench.Push(to_c, 1);
    ASSERT_EQ(bench.Take().size(), 1U);
    bench.pacer.Ended(to_c, kPiece);
  }
}

// Bytes that each group gets while all always have something to send.
std::map<int, double> BytesOf(Bench& bench, const std::map<int, std::size_t>& sizes, int turns) {
  std::map<int, double> bytes;
  for (const auto& [group, size] : sizes) {
    for (const auto& [peer, flow] : bench.flows[group]) bench.Push(flow, 10, size);
  }
  for (int i = 0; i < turns; ++i) {
    const auto turn = bench.pacer.Next();
    if (!turn) {
      ADD_FAILURE() << "there is something to send, and room for it";
      return bytes;
    }
    const std::size_t size = sizes.at(turn->group);
    bytes[turn->group] += static_cast<double>(size);
    const SendPacer::FlowId flow = bench.flows[turn->group].begin()->second;
    bench.pacer.Push(flow, 5, size);
    bench.pacer.Ended(flow, size);
  }
  return bytes;
}

TEST(SendPacer, SharesByWeightWhateverTheSizesOfMessages) {
  Bench bench;
  bench.Open(0, "b", {.weight = 1});
  bench.Open(1, "b", {.weight = 3});
  bench.Open(2, "b", {.weight = 6});
  const auto bytes = BytesOf(bench, {{0, 96 << 10}, {1, 16 << 10}, {2, 40000}}, 20000);
  EXPECT_NEAR(bytes.at(1) / bytes.at(0), 3, 0.1);
  EXPECT_NEAR(bytes.at(2) / bytes.at(0), 6, 0.2);
}

TEST(SendPacer, FollowsASharesChangeFromThenOn) {
  Bench bench;
  bench.Open(0, "b");
  bench.Open(1, "b");
  BytesOf(bench, {{0, kPiece}, {1, kPiece}}, 1000);
  bench.pacer.SetShare(1, {.weight = 4});
  std::map<int, int> turns;
  for (int i = 0; i < 1000; ++i) {
    const auto turn = *bench.pacer.Next();
    ++turns[turn.group];
    bench.pacer.Push(bench.flows[turn.group]["b"], 5, kPiece);
    bench.pacer.Ended(bench.flows[turn.group]["b"], kPiece);
  }
  EXPECT_NEAR(turns[1] / static_cast<double>(turns[0]), 4, 0.1);
}

TEST(SendPacer, CountsWhatAGroupHasSentToAnyPeer) {
  Bench bench;
  const auto one = bench.Open(0, "b");
  const auto other = bench.Open(1, "b");
  const auto aside = bench.Open(1, "c");
  bench.Push(aside, 1, 10 * kPiece);
  ASSERT_EQ(bench.Take(), std::vector<int>{1});
  // Group 1 is ten pieces ahead when both have something for b.
  bench.Push(other, 1);
  bench.Push(one, 12);
  int before = 0;
  for (auto groups = bench.Take(); groups.empty() || groups.back() == 0; groups = bench.Take()) {
    ASSERT_LT(before, 12);
    before += static_cast<int>(groups.size());
    bench.pacer.Ended(one, kPiece);
  }
  EXPECT_GE(before, 8);
}

TEST(SendPacer, SavesUpNoTurnsForAGroupThatHadNothingToSend) {
  Bench bench;
  const auto one = bench.Open(0, "b");
  const auto other = bench.Open(1, "b");
  bench.Push(other, 1);
  bench.Take();
  bench.pacer.Ended(other, kPiece);
  for (int i = 0; i < 1000; ++i) {
    bench.Push(one, 1);
    ASSERT_EQ(bench.Take().size(), 1U);
    bench.pacer.Ended(one, kPiece);
  }
  bench.Push(one, 50);
  bench.Push(other, 50);
  std::map<int, int> turns;
  for (int i = 0; i < 40; ++i) {
    const auto turn = *bench.pacer.Next();
    ++turns[turn.group];
    bench.pacer.Ended(bench.flows[turn.group]["b"], kPiece);
  }
  EXPECT_NEAR(turns[0], turns[1], 10) << "of a thousand it has had none of";
}

TEST(SendPacer, LetsAGroupThatComesLateNeitherCatchUpNorPay) {
  Bench bench;
  bench.Open(0, "b");
  BytesOf(bench, {{0, kPiece}}, 5000);
  bench.Open(1, "b");
  const auto bytes = BytesOf(bench, {{0, kPiece}, {1, kPiece}}, 60);
  EXPECT_NEAR(bytes.at(0), bytes.at(1), 2 * kPiece);
}

TEST(SendPacer, GivesAllTurnsToTheHighestPriority) {
  Bench bench;
  const auto low = bench.Open(0, "b", {.weight = 1000, .priority = 1});
  const auto high = bench.Open(1, "b", {.weight = 1, .priority = 2});
  bench.Push(low, 10);
  bench.Push(high, 10);
  for (int i = 0; i < 10; ++i) {
    const auto turn = bench.pacer.Next();
    ASSERT_TRUE(turn);
    EXPECT_EQ(turn->group, 1);
    bench.pacer.Ended(high, kPiece);
  }
  EXPECT_EQ(bench.pacer.Next()->group, 0) << "nobody else has anything";
}

// A class that was shut out by a better one shares as before when its time comes, also with one
// that comes into it.
TEST(SendPacer, SharesInsideAClassWhateverTheOthersHaveHad) {
  Bench bench;
  bench.Open(0, "b");
  bench.Open(1, "b");
  bench.Open(2, "b", {.weight = 1, .priority = 9});
  BytesOf(bench, {{2, kPiece}}, 3000);
  bench.pacer.SetShare(2, {});
  const auto bytes = BytesOf(bench, {{0, kPiece}, {1, kPiece}, {2, kPiece}}, 300);
  EXPECT_NEAR(bytes.at(0), 100 * kPiece, 12 * kPiece);
  EXPECT_NEAR(bytes.at(1), 100 * kPiece, 12 * kPiece);
  EXPECT_NEAR(bytes.at(2), 100 * kPiece, 12 * kPiece);
}

TEST(SendPacer, LetsWhoeverHasWaitedASecondGoOnceBeforeItsBetters) {
  Bench bench;
  const auto low = bench.Open(0, "b");
  const auto high = bench.Open(1, "b", {.weight = 1, .priority = 1});
  bench.Push(low, 10);
  bench.Push(high, 50);
  constexpr TimeNs kTurn = SendPacer::kPatience / 10;
  std::vector<TimeNs> low_turns;
  bench.Take();
  // The first two that went were of the better class; the room of one is given back each time.
  for (TimeNs now = 0; now < 4 * kSecond; now += kTurn) {
    bench.pacer.AdvanceTo(now);
    bench.pacer.Ended(high, kPiece);
    const auto turn = bench.pacer.Next();
    ASSERT_TRUE(turn);
    if (turn->group == 0) low_turns.push_back(now);
  }
  EXPECT_EQ(low_turns, (std::vector<TimeNs>{kSecond, 2 * kSecond, 3 * kSecond}));
}

TEST(SendPacer, TakesBackWhatAGroupHasWaitingAndNothingElse) {
  Bench bench;
  const auto one = bench.Open(0, "b");
  const auto other = bench.Open(1, "b");
  for (std::uint16_t item = 0; item < 4; ++item) bench.pacer.Push(one, item, kPiece);
  bench.Push(other, 3);
  ASSERT_EQ(bench.Take().size(), 2U);  // one of each
  std::vector<int> back;
  while (const auto item = bench.pacer.Withdraw(one)) back.push_back(*item);
  EXPECT_EQ(back, (std::vector<int>{1, 2, 3}));
  bench.pacer.Ended(one, kPiece);
  EXPECT_EQ(bench.Take(), std::vector<int>{1});
  bench.pacer.Ended(other, kPiece);
  EXPECT_EQ(bench.Take(), std::vector<int>{1});
  EXPECT_TRUE(bench.Take().empty());
}

TEST(SendPacer, UsesPlacesAgainForGroupsAndPeers) {
  Bench bench;
  SendPacer::FlowId first = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto flow = bench.pacer.OpenFlow(4, 0, "peer " + std::to_string(i), kItemsMax);
    if (i == 0) first = flow;
    EXPECT_EQ(flow, first);
    bench.Push(flow, 3);
    ASSERT_EQ(bench.Take().size(), 2U);
    bench.pacer.Ended(flow, kPiece);
    bench.pacer.Ended(flow, kPiece);
    bench.pacer.CloseFlows(4);
    EXPECT_FALSE(bench.pacer.Next()) << "what was waiting went with the group";
  }
}

TEST(SendPacer, CallsAPeerStuckThatIsFullAndTakesNothing) {
  Bench bench;
  const auto flow = bench.Open(0, "b");
  bench.pacer.AdvanceTo(kSecond);
  bench.Push(flow, 5);
  bench.Take();
  EXPECT_FALSE(bench.pacer.IsStuck(flow));
  bench.pacer.AdvanceTo(kSecond + SendPacer::kStuckAfter);
  EXPECT_TRUE(bench.pacer.IsStuck(flow));
  bench.pacer.Ended(flow, kPiece);
  bench.Take();
  EXPECT_FALSE(bench.pacer.IsStuck(flow)) << "it moves";
}

// Whatever happens: nothing is lost or comes twice, each flow keeps its order, and nothing waits
// where there is room.
TEST(SendPacer, LosesNothingAtRandom) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 dice(seed);
    Bench bench;
    std::map<SendPacer::FlowId, std::vector<std::uint16_t>> waiting;
    std::map<std::pair<int, int>, SendPacer::FlowId> flow_of;  // by group and member
    std::vector<std::pair<SendPacer::FlowId, std::size_t>> out;
    std::map<SendPacer::FlowId, std::size_t> peer_of;
    std::array<std::size_t, 3> bytes_out{};
    for (std::uint16_t group = 0; group < 4; ++group) {
      for (std::uint16_t peer = 0; peer < 3; ++peer) {
        const auto flow = bench.pacer.OpenFlow(group, peer, std::to_string(peer), kItemsMax);
        flow_of[{group, peer}] = flow;
        peer_of[flow] = peer;
      }
      bench.pacer.SetShare(group, {.weight = static_cast<std::uint32_t>(1 + dice() % 9),
                                   .priority = static_cast<std::uint32_t>(dice() % 2)});
    }
    const auto size_of = [](std::uint16_t item) { return std::size_t{item} * 37 % 1500; };
    std::uint16_t item = 0;
    for (int step = 0; step < 2000; ++step) {
      bench.pacer.AdvanceTo(step * 20 * kMillisecond);
      const auto flow = flow_of.at({static_cast<int>(dice() % 4), static_cast<int>(dice() % 3)});
      if (dice() % 2 == 0 && waiting[flow].size() < kItemsMax) {
        waiting[flow].push_back(++item);
        bench.pacer.Push(flow, item, size_of(item));
      } else if (!out.empty()) {
        const std::size_t which = dice() % out.size();
        bench.pacer.Ended(out[which].first, out[which].second);
        bytes_out[peer_of[out[which].first]] -= out[which].second + SendPacer::kMessageCost;
        out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
      }
      while (const auto turn = bench.pacer.Next()) {
        const auto from = flow_of.at({turn->group, turn->member});
        ASSERT_FALSE(waiting[from].empty()) << "seed " << seed;
        ASSERT_EQ(waiting[from].front(), turn->item) << "seed " << seed;
        waiting[from].erase(waiting[from].begin());
        ASSERT_LT(bytes_out[turn->member], kRoom) << "seed " << seed;
        bytes_out[turn->member] += size_of(turn->item) + SendPacer::kMessageCost;
        out.emplace_back(from, size_of(turn->item));
      }
      for (const auto& [each, items] : waiting) {
        if (!items.empty()) {
          ASSERT_GE(bytes_out[peer_of[each]], kRoom) << "seed " << seed;
        }
      }
    }
  }
}

// The items of all messages to "b" that have room now, one room at a time.
std::vector<int> ItemsOf(SendPacer& pacer, SendPacer::FlowId any, TimeNs now) {
  std::vector<int> items;
  while (const auto turn = pacer.Next()) {
    items.push_back(turn->item);
    pacer.Ended(any, kRoom);
    pacer.AdvanceTo(++now);
  }
  return items;
}

TEST(SendPacer, LetsTheMoreUrgentFlowsOfAGroupGoFirstOrAllInTurn) {
  for (const bool by_urgency : {true, false}) {
    SendPacer pacer(1);
    pacer.SetShare(0, {.by_urgency = by_urgency});
    const auto usual = pacer.OpenFlow(0, 7, "b", kItemsMax);
    const auto first = pacer.OpenFlow(0, 7, "b", kItemsMax, SendPacer::Urgency::kFirst);
    const auto soon = pacer.OpenFlow(0, 7, "b", kItemsMax, SendPacer::Urgency::kSoon);
    TimeNs now = 0;
    for (const auto flow : {usual, soon, first}) {
      for (int i = 0; i < 2; ++i) pacer.Push(flow, static_cast<std::uint16_t>(flow), kRoom);
      pacer.AdvanceTo(++now);
    }
    const std::vector<int> in_turn{usual, soon, first, usual, soon, first};
    const std::vector<int> urgent{first, first, soon, soon, usual, usual};
    EXPECT_EQ(ItemsOf(pacer, usual, now), by_urgency ? urgent : in_turn);
  }
}

}  // namespace
}  // namespace headrace::transport
