// One wire over two rails, without what is above it.
#include "transport/rails/rail_wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/loopback/simulated_wire.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kKey = 77;
constexpr std::size_t kLarge = 40'000;  // its send ends when it was acknowledged
constexpr std::size_t kSmall = 100;

// Accepts what comes, and writes down what it is told.
class Owner final : public WireEvents {
 public:
  explicit Owner(Wire& wire) : wire_(wire) {}
  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) override {
    announced.push_back(header.position);
    if (!accepts) return wire_.Drop(arrival);
    memory.emplace_back(size);
    wire_.Accept(arrival, memory.back().data(), header.position);
  }
  void Sent(std::uint64_t token, Code code) override { sent.emplace_back(token, code); }
  void Received(std::uint64_t, Code code) override { received.push_back(code); }
  void LinkFailed(LinkId, const std::string& cause) override { failed.push_back(cause); }
  void LinkMoved(LinkId, const LinkMove& move) override { moves.push_back(move); }

  bool accepts = true;
  std::vector<std::uint64_t> announced;
  std::vector<std::pair<std::uint64_t, Code>> sent;
  std::vector<Code> received;
  std::vector<std::string> failed;
  std::vector<LinkMove> moves;
  std::vector<std::vector<std::byte>> memory;

 private:
  Wire& wire_;
};

struct End {
  End(SimulatedNetwork& network, const std::string& name, std::uint64_t id)
      : wire({&network.AddWire(name), &network.AddWire(name + "1")}, id), owner(wire) {}

  RailWire wire;
  Owner owner;
};

class RailWirePair : public ::testing::Test {
 protected:
  void Send(std::uint64_t token, std::size_t size) {
    bytes_.resize(kLarge, std::byte{5});
    a_.wire.Send(to_b_, {.key = kKey, .position = token}, bytes_.data(), size, token);
  }
  bool Step() {
    bool worked = false;
    for (End* const end : {&a_, &b_}) {
      if (end == &b_ && b_is_gone_) continue;
      end->wire.AdvanceTo(network_.now());
      worked = end->wire.Progress(end->owner) || worked;
      worked = !end->wire.PrepareToSleep() || worked;
    }
    return worked;
  }
  void RunTo(TimeNs until) {
    while (network_.now() < until) {
      if (Step()) continue;
      const TimeNs due =
          std::min({network_.NextDue(), a_.wire.NextDeadline(), b_.wire.NextDeadline(), until});
      network_.AdvanceTo(std::max(due, network_.now()));
    }
  }
  void RunFor(TimeNs time_ns) { RunTo(network_.now() + time_ns); }
  // As if `from` had sent it over the rail.
  void Inject(const std::string& to, MessageHeader header, std::size_t size = 0) {
    network_.Inject(to, header, std::vector<std::byte>(size));
  }

  SimulatedNetwork network_{{.latency_ns = 100 * kMicrosecond, .eager_size = kLarge}};
  End a_{network_, "a", 1};
  End b_{network_, "b", 2};
  LinkId to_b_ = *a_.wire.Connect(b_.wire.address(), kKey, 1);
  LinkId to_a_ = *b_.wire.Connect(a_.wire.address(), kKey, 0);
  std::vector<std::byte> bytes_;
  bool b_is_gone_ = false;
};

using Sends = std::vector<std::pair<std::uint64_t, Code>>;

TEST_F(RailWirePair, EndsALargeSendWhenItWasAcknowledgedAndASmallOneWhenItHasLeft) {
  Send(1, kSmall);
  Send(2, kLarge);
  RunFor(50 * kMicrosecond);
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
  RunFor(kMillisecond);
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}, {2, Code::kOk}}));
  EXPECT_EQ(b_.owner.announced, (std::vector<std::uint64_t>{1, 2}));
}

TEST_F(RailWirePair, SendsASmallMessageAgainFromItsCopy) {
  network_.CutOneWay("a", "b", Silence::kSilent);
  Send(1, kSmall);
  RunFor(kMillisecond);
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
  std::ranges::fill(bytes_, std::byte{9});
  RunFor(200 * kMillisecond);
  ASSERT_EQ(b_.owner.memory.size(), 1U);
  EXPECT_EQ(b_.owner.memory[0], std::vector<std::byte>(kSmall, std::byte{5}));
  EXPECT_EQ(a_.owner.sent.size(), 1U);
}

TEST_F(RailWirePair, SendsAgainOverTheSameRailWhatItHasLostWhereItWorks) {
  network_.CutOneWay("a", "b", Silence::kSilent);
  Send(1, kLarge);
  RunFor(20 * kMillisecond);
  network_.Mend("a", "b");
  RunFor(200 * kMillisecond);
  EXPECT_EQ(b_.owner.announced, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
  EXPECT_TRUE(a_.owner.moves.empty());
}

// As where a job has ended there and not yet here: no other job's link moves, either.
TEST_F(RailWirePair, KeepsARailOverWhichMessagesComeToALinkThatIsClosed) {
  ASSERT_TRUE(a_.wire.Connect(b_.wire.address(), kKey + 1, 1));
  ASSERT_TRUE(b_.wire.Connect(a_.wire.address(), kKey + 1, 0));
  b_.wire.Close(to_a_);
  RunFor(2 * RailWire::kLingerNs);
  Send(1, kSmall);
  RunFor(kSecond);
  EXPECT_TRUE(a_.owner.moves.empty());
  EXPECT_TRUE(a_.owner.failed.empty());
  EXPECT_EQ(b_.owner.announced, (std::vector<std::uint64_t>{1, 1, 1, 1})) << "later each time";
}

TEST_F(RailWirePair, SendsNothingTwiceThatIsNotLost) {
  for (std::uint64_t token = 1; token <= 5000; ++token) {
    Send(token, token % 7 == 0 ? kLarge : kSmall);
    RunFor(30 * kMicrosecond);
  }
  RunFor(100 * kMillisecond);
  EXPECT_EQ(b_.owner.announced.size(), 5000U);
  EXPECT_EQ(a_.owner.sent.size(), 5000U);
  EXPECT_EQ(b_.wire.dropped_count(), 0U);
  EXPECT_TRUE(a_.owner.moves.empty());
}

// More than may be under way: the rest waits, and everything arrives.
TEST_F(RailWirePair, KeepsWithinTheWindow) {
  constexpr std::uint64_t kCount = 3 * ReceivedWindow::kSize;
  for (std::uint64_t token = 1; token <= kCount; ++token) Send(token, 0);
  RunFor(100 * kMillisecond);
  EXPECT_EQ(b_.owner.announced.size(), kCount);
  EXPECT_EQ(b_.wire.dropped_count(), 0U);
  EXPECT_EQ(a_.owner.sent.size(), kCount);
}

TEST_F(RailWirePair, AcknowledgesAfterItsLinkWasClosed) {
  Send(1, kLarge);
  b_.wire.Close(to_a_);
  RunFor(kMillisecond);
  EXPECT_TRUE(b_.owner.announced.empty());
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
  EXPECT_EQ(b_.wire.links_count(), 1U);
  RunFor(RailWire::kLingerNs);
  EXPECT_EQ(b_.wire.links_count(), 0U);
  EXPECT_EQ(b_.wire.NextDeadline(), kNever);
}

TEST_F(RailWirePair, LetsGoOfMemoryAtOnceWhenALinkIsClosedWithSendsOpen) {
  network_.Dam("a", "b");
  Send(1, kLarge);
  Send(2, kSmall);
  a_.wire.Close(to_b_);
  RunFor(kMillisecond);
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kCancelled}, {2, Code::kCancelled}}));
  EXPECT_EQ(network_.open_count(), 0U);
  EXPECT_EQ(a_.wire.links_count(), 0U);
}

TEST_F(RailWirePair, RefusesAnAddressOfAnotherNumberOfRails) {
  RailWire third({&network_.AddWire("c")}, 3);
  EXPECT_EQ(a_.wire.Connect(third.address(), 5, 0).error().code(), Code::kUnavailable);
  EXPECT_EQ(a_.wire.Connect("simulated:b", 5, 0).error().code(), Code::kUnavailable);
  EXPECT_EQ(a_.wire.links_count(), 1U);
}

// Whoever knows the key may lie about what has come; it says nothing of other links, and what was
// not sent cannot have come.
TEST_F(RailWirePair, IgnoresAcknowledgementsOfWhatWasNotSent) {
  network_.Dam("a", "b");
  Send(1, kLarge);
  const MessageHeader lie{.position = kKey, .operation_count = 2, .kind = 1, .acknowledged = 900};
  Inject("a", lie);
  MessageHeader other = lie;
  other.position = kKey + 1;
  other.acknowledged = 2;
  Inject("a", other);
  other = lie;
  other.operation_count = 12345;  // a wire that nobody knows
  other.acknowledged = 2;
  Inject("a", other);
  RunFor(10 * kMillisecond);
  EXPECT_TRUE(a_.owner.sent.empty());
  EXPECT_EQ(a_.wire.dropped_count(), 1U);
}

TEST_F(RailWirePair, DropsWhatMakesNoSense) {
  Inject("a", {.operation_count = 2, .kind = 99});
  Inject("a", {.operation_count = 2, .kind = 3});                  // a pong without a number
  Inject("a", {.position = 50, .operation_count = 2, .kind = 3});  // of no ping
  Inject("a", {.operation_count = 2, .kind = 2}, 10);              // with bytes
  Inject("a", {.key = kKey, .sender = 1, .sequence = 1 << 20});
  Inject("a", {.key = kKey, .sender = 1, .sequence = 0});  // came before
  RunFor(kMillisecond);
  EXPECT_EQ(a_.wire.dropped_count(), 6U);
  EXPECT_TRUE(a_.owner.announced.empty());
}

// What comes for no link is for the owner of groups to count and drop.
TEST_F(RailWirePair, PassesOnWhatIsForNoLink) {
  a_.owner.accepts = false;
  Inject("a", {.key = kKey + 1, .position = 8, .sender = 1, .sequence = 1});
  Inject("a", {.key = kKey, .position = 9, .sender = 5, .sequence = 1});
  RunFor(kMillisecond);
  EXPECT_EQ(a_.owner.announced, (std::vector<std::uint64_t>{8, 9}));
  EXPECT_EQ(network_.open_count(), 0U);
}

TEST_F(RailWirePair, AnswersAFloodOfPingsWithOnePongAtATime) {
  network_.Dam("a", "b");
  for (std::uint64_t number = 1; number <= 1000; ++number) {
    Inject("a", {.position = number, .operation_count = 2, .kind = 2});
  }
  RunFor(10 * kMillisecond);
  EXPECT_EQ(network_.open_count(), 1U);
}

TEST_F(RailWirePair, ChoosesAnotherRailWhenItsOwnCannotBeUsedFromTheStart) {
  network_.Cut("a", "b", Silence::kTold);
  RunFor(10 * kMillisecond);
  ASSERT_EQ(a_.owner.moves.size(), 1U);
  EXPECT_EQ(a_.owner.moves[0].messages, 0U);
  Send(1, kLarge);
  RunFor(kMillisecond);
  EXPECT_EQ(b_.owner.announced, (std::vector<std::uint64_t>{1}));
}

// What was sent over the second rail, which is cut without a word, goes over the first as soon as
// that is back, and when the second is known to be gone.
TEST_F(RailWirePair, SendsAgainWhatWasOnARailThatIsNoLongerInUse) {
  network_.Cut("a", "b", Silence::kTold);
  RunFor(10 * kMillisecond);
  ASSERT_EQ(a_.owner.moves.size(), 1U);
  network_.Cut("a1", "b1", Silence::kSilent);
  Send(1, kLarge);
  RunFor(100 * kMillisecond);
  network_.Mend("a", "b");
  RunFor(kSecond);
  EXPECT_EQ(b_.owner.announced, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
}

TEST_F(RailWirePair, SendsAgainWhatWasOnARailThatFailsAfterItsTime) {
  network_.Cut("a", "b", Silence::kTold);
  RunFor(kMillisecond * 5);
  network_.Mend("a", "b");
  for (TimeNs at = 0; at < kSecond && a_.owner.moves.size() < 2; at += kMillisecond) {
    network_.CutOneWay("a1", "b1", Silence::kSilent);
    if (a_.owner.moves.size() == 1 && at == 235 * kMillisecond) Send(1, kLarge);
    RunFor(kMillisecond);
  }
  ASSERT_EQ(a_.owner.moves.size(), 2U);  // there, and back
  RunFor(20 * kMillisecond);
  ASSERT_TRUE(b_.owner.announced.empty());
  network_.Cut("a1", "b1", Silence::kTold);
  RunFor(20 * kMillisecond);
  EXPECT_EQ(b_.owner.announced, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
}

// The rail in use works, and so does the one that has lost it.
TEST_F(RailWirePair, SendsAgainWhatARailHasLostThatIsNoLongerInUse) {
  network_.Cut("a", "b", Silence::kTold);
  RunFor(10 * kMillisecond);
  network_.Mend("a", "b");
  RunTo(240 * kMillisecond);  // shortly before the first rail is tried again
  network_.CutOneWay("a1", "b1", Silence::kSilent);
  Send(1, kLarge);
  RunFor(2 * kMillisecond);
  network_.Mend("a1", "b1");
  RunFor(200 * kMillisecond);
  EXPECT_EQ(b_.owner.announced, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
}

// A wire that is told of the other one's number with rails of its own has them to itself.
TEST_F(RailWirePair, TakesAnothersNumberWithOtherRailsForAnotherPeer) {
  End false_b(network_, "c", 2);
  ASSERT_TRUE(a_.wire.Connect(false_b.wire.address(), kKey + 1, 1));
  ASSERT_TRUE(false_b.wire.Connect(a_.wire.address(), kKey + 1, 0));
  a_.wire.Close(to_b_);
  b_.wire.Close(to_a_);
  RunFor(3 * kSecond);
  to_b_ = *a_.wire.Connect(b_.wire.address(), kKey, 1);
  to_a_ = *b_.wire.Connect(a_.wire.address(), kKey, 0);
  Send(1, kLarge);
  RunFor(kMillisecond);
  EXPECT_EQ(b_.owner.announced, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
}

TEST_F(RailWirePair, MovesOtherLinksWhenANewOneIsRefusedOnTheirRail) {
  network_.Refuse("b");
  ASSERT_TRUE(a_.wire.Connect(b_.wire.address(), kKey + 1, 1));
  RunFor(10 * kMillisecond);
  ASSERT_EQ(a_.owner.moves.size(), 1U);
  EXPECT_NE(a_.owner.moves[0].cause.find("refuses connections"), std::string::npos);
  Send(1, kLarge);
  RunFor(10 * kMillisecond);
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kOk}}));
}

TEST_F(RailWirePair, FailsOtherLinksWhenANewOneIsRefusedOnEveryRail) {
  Send(1, kLarge);
  network_.Refuse("b");
  network_.Refuse("b1");
  const Result<LinkId> refused = a_.wire.Connect(b_.wire.address(), kKey + 1, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  RunFor(10 * kMillisecond);
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kPeerLost}}));
  ASSERT_EQ(a_.owner.failed.size(), 1U);
  EXPECT_NE(a_.owner.failed[0].find("; over "), std::string::npos);
  a_.wire.Close(to_b_);
  RunFor(kMillisecond);
  EXPECT_EQ(a_.wire.links_count(), 0U);
}

TEST_F(RailWirePair, ReportsTheLinkAsFailedWhenNoRailIsLeft) {
  Send(1, kLarge);
  b_is_gone_ = true;
  network_.Vanish("b", Silence::kTold);
  network_.Vanish("b1", Silence::kTold);
  RunFor(10 * kMillisecond);
  network_.Vanish("b1", Silence::kTold);  // whoever connects to it now is told
  RunFor(10 * kMillisecond);
  EXPECT_EQ(a_.owner.sent, (Sends{{1, Code::kPeerLost}}));
  ASSERT_EQ(a_.owner.failed.size(), 1U);
  EXPECT_NE(a_.owner.failed[0].find("; over "), std::string::npos);
  Send(2, kLarge);
  RunFor(kMillisecond);
  EXPECT_EQ(a_.owner.sent.back(), (std::pair{std::uint64_t{2}, Code::kPeerLost}));
  a_.wire.Close(to_b_);
  RunFor(kMillisecond);
  EXPECT_EQ(a_.wire.links_count(), 0U);
}

// A rail that keeps messages of groups to itself, until their link is closed, and lets pings
// through.
class Withholding final : public Wire {
 public:
  explicit Withholding(Wire& rail) : rail_(rail) {}
  const std::string& address() const override { return rail_.address(); }
  std::string Names() const override { return rail_.Names(); }
  Result<LinkId> Connect(const std::string& address, std::uint64_t key,
                         std::uint16_t member) override {
    return rail_.Connect(address, key, member);
  }
  void Close(LinkId link) override {
    rail_.Close(link);
    std::erase_if(withheld, [&](const auto& each) {
      if (each.first == link) ended_.push_back(each.second);
      return each.first == link;
    });
  }
  bool IsEager(std::size_t size) const override { return rail_.IsEager(size); }
  void Send(LinkId link, const MessageHeader& header, const std::byte* bytes, std::size_t size,
            std::uint64_t token) override {
    if (header.key == 0) return rail_.Send(link, header, bytes, size, token);
    withheld.emplace_back(link, token);
  }
  using Wire::Accept;
  void Accept(ArrivalId arrival, std::byte* memory, std::uint64_t token,
              std::size_t whole) override {
    rail_.Accept(arrival, memory, token, whole);
  }
  void Drop(ArrivalId arrival) override { rail_.Drop(arrival); }
  Result<std::span<std::byte>> AllocateStaging(std::size_t size) override {
    return rail_.AllocateStaging(size);
  }
  void FreeStaging(std::span<std::byte> memory) override { rail_.FreeStaging(memory); }
  void AdvanceTo(TimeNs now) override { rail_.AdvanceTo(now); }
  TimeNs NextDeadline() const override { return rail_.NextDeadline(); }
  bool Progress(WireEvents& events) override {
    const std::vector<std::uint64_t> ended = std::exchange(ended_, {});
    for (const std::uint64_t token : ended) events.Sent(token, Code::kCancelled);
    return rail_.Progress(events) || !ended.empty();
  }
  bool PrepareToSleep() override { return ended_.empty() && rail_.PrepareToSleep(); }
  int event_fd() const override { return rail_.event_fd(); }
  std::uint64_t dropped_count() const override { return rail_.dropped_count(); }

  std::vector<std::pair<LinkId, std::uint64_t>> withheld;

 private:
  Wire& rail_;
  std::vector<std::uint64_t> ended_;
};

// Nothing is queued there twice, and in the end the other rail takes it.
TEST(RailWire, LeavesARailThatOnlyLetsPingsThrough) {
  SimulatedNetwork network({.latency_ns = 100 * kMicrosecond, .eager_size = kLarge});
  Withholding rail(network.AddWire("a"));
  RailWire wire({&rail, &network.AddWire("a1")}, 1);
  Owner owner(wire);
  End b(network, "b", 2);
  const LinkId to_b = *wire.Connect(b.wire.address(), kKey, 1);
  ASSERT_TRUE(b.wire.Connect(wire.address(), kKey, 0));
  const std::vector<std::byte> bytes(kLarge, std::byte{5});
  wire.Send(to_b, {.key = kKey, .position = 1}, bytes.data(), kLarge, 1);
  std::size_t withheld_most = 0;
  while (owner.sent.empty() && network.now() < 20 * kSecond) {
    wire.AdvanceTo(network.now());
    b.wire.AdvanceTo(network.now());
    bool worked = wire.Progress(owner);
    worked = b.wire.Progress(b.owner) || worked;
    worked = !wire.PrepareToSleep() || worked;
    worked = !b.wire.PrepareToSleep() || worked;
    withheld_most = std::max(withheld_most, rail.withheld.size());
    if (worked) continue;
    network.AdvanceTo(std::min({network.NextDue(), wire.NextDeadline(), b.wire.NextDeadline()}));
  }
  EXPECT_EQ(owner.sent, (Sends{{1, Code::kOk}}));
  EXPECT_EQ(owner.moves.size(), 1U);
  EXPECT_EQ(withheld_most, 1U);
  EXPECT_GT(network.now(), 5 * kSecond);
}

}  // namespace
}  // namespace headrace::transport
