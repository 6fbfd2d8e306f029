// The network that other tests believe.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/loopback/simulated_wire.h"

namespace headrace::transport {
namespace {

std::vector<std::byte> Bytes(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

// Writes down what a wire tells.
class Diary final : public WireEvents {
 public:
  void Announced(const MessageHeader& header, std::size_t size, ArrivalId arrival) override {
    lines.push_back("announced " + std::to_string(header.position) + " of " + std::to_string(size));
    arrivals.push_back(arrival);
  }
  void Sent(std::uint64_t token, Code code) override {
    lines.push_back("sent " + std::to_string(token) + " " + std::string(CodeName(code)));
  }
  void Received(std::uint64_t token, Code code) override {
    lines.push_back("received " + std::to_string(token) + " " + std::string(CodeName(code)));
  }
  void LinkFailed(LinkId, const std::string& cause) override {
    lines.push_back("failed: " + cause);
  }

  std::vector<std::string> lines;
  std::vector<ArrivalId> arrivals;
};

using Lines = std::vector<std::string>;

class SimulatedPair : public ::testing::Test {
 protected:
  static constexpr std::size_t kSmall = 10;
  static constexpr std::size_t kLarge = 10000;

  Lines TakeA() { return Take(a_, diary_a_); }
  Lines TakeB() { return Take(b_, diary_b_); }
  void SendToB(std::size_t size, std::uint64_t token) {
    bytes_ = Bytes(size, 1);
    a_.Send(to_b_, {.position = token}, bytes_.data(), size, token);
  }

  SimulatedNetwork network_{
      {.latency_ns = 100, .ns_per_byte = 1, .detection_ns = 5000, .closes_are_told = true}};
  Wire& a_ = network_.AddWire("a");
  Wire& b_ = network_.AddWire("b");
  LinkId to_b_ = *a_.Connect("simulated:b", 0, 0);
  LinkId to_a_ = *b_.Connect("simulated:a", 0, 0);
  std::vector<std::byte> bytes_;
  Diary diary_a_;
  Diary diary_b_;

 private:
  static Lines Take(Wire& wire, Diary& diary) {
    wire.Progress(diary);
    return std::exchange(diary.lines, {});
  }
};

TEST_F(SimulatedPair, ReadsASmallMessageWhenItLeavesAndTellsOfItLater) {
  SendToB(kSmall, 1);
  network_.AdvanceTo(9);
  EXPECT_EQ(TakeA(), Lines{});
  network_.AdvanceTo(10);
  EXPECT_EQ(TakeA(), Lines{"sent 1 ok"});
  std::ranges::fill(bytes_, std::byte{9});  // changes nothing any more
  network_.AdvanceTo(109);
  EXPECT_EQ(TakeB(), Lines{});
  network_.AdvanceTo(110);
  EXPECT_EQ(TakeB(), Lines{"announced 1 of 10"});
  auto memory = Bytes(kSmall, 0);
  b_.Accept(diary_b_.arrivals[0], memory.data(), 7);
  network_.AdvanceTo(110);
  EXPECT_EQ(TakeB(), Lines{"received 7 ok"});
  EXPECT_EQ(memory, Bytes(kSmall, 1));
  EXPECT_EQ(network_.open_count(), 0U);
}

TEST_F(SimulatedPair, ReadsALargeMessageInTheMomentItIsWritten) {
  SendToB(kLarge, 1);
  network_.AdvanceTo(100);
  EXPECT_EQ(TakeB(), Lines{"announced 1 of 10000"});
  auto memory = Bytes(kLarge, 0);
  b_.Accept(diary_b_.arrivals[0], memory.data(), 7);
  network_.AdvanceTo(10299);
  EXPECT_EQ(memory, Bytes(kLarge, 0));
  EXPECT_EQ(TakeA(), Lines{});
  std::ranges::fill(bytes_, std::byte{9});  // too early: found out
  network_.AdvanceTo(10300);
  EXPECT_EQ(memory, Bytes(kLarge, 9));
  EXPECT_EQ(TakeB(), Lines{"received 7 ok"});
  network_.AdvanceTo(10400);
  EXPECT_EQ(TakeA(), Lines{"sent 1 ok"});
}

TEST_F(SimulatedPair, EndsTheSendOfADroppedMessage) {
  SendToB(kLarge, 1);
  network_.AdvanceTo(100);
  TakeB();
  b_.Drop(diary_b_.arrivals[0]);
  network_.AdvanceTo(200);
  EXPECT_EQ(TakeA(), Lines{"sent 1 ok"});
  EXPECT_EQ(network_.open_count(), 0U);
}

TEST_F(SimulatedPair, TellsBothEndsOfACutAndEndsWhatIsOpen) {
  SendToB(kLarge, 1);
  network_.AdvanceTo(100);
  TakeB();
  auto memory = Bytes(kLarge, 0);
  b_.Accept(diary_b_.arrivals[0], memory.data(), 7);
  network_.Cut("a", "b", Silence::kTold);
  network_.AdvanceTo(100 + 5000);
  Lines a = TakeA();
  std::ranges::sort(a);
  EXPECT_EQ(a, (Lines{"failed: simulated cut", "sent 1 peer lost"}));
  Lines b = TakeB();
  std::ranges::sort(b);
  EXPECT_EQ(b, (Lines{"failed: simulated cut", "received 7 peer lost"}));
  network_.AdvanceTo(1'000'000);
  EXPECT_EQ(memory, Bytes(kLarge, 0));
  EXPECT_EQ(network_.open_count(), 0U);
}

TEST_F(SimulatedPair, SaysNothingOfASilentCutUntilTheLinkIsClosed) {
  SendToB(kLarge, 1);
  SendToB(kSmall, 2);
  network_.Cut("a", "b", Silence::kSilent);
  network_.AdvanceTo(1'000'000);
  EXPECT_EQ(TakeA(), Lines{"sent 2 ok"});  // it has left; whether it arrives is another thing
  EXPECT_EQ(TakeB(), Lines{});
  a_.Close(to_b_);
  EXPECT_EQ(TakeA(), Lines{"sent 1 cancelled"});
  network_.AdvanceTo(2'000'000);
  EXPECT_EQ(TakeB(), Lines{});
}

TEST_F(SimulatedPair, TellsTheOtherEndOfAClose) {
  SendToB(kLarge, 1);
  network_.AdvanceTo(100);
  TakeB();
  auto memory = Bytes(kLarge, 0);
  b_.Accept(diary_b_.arrivals[0], memory.data(), 7);
  b_.Close(to_a_);
  EXPECT_EQ(TakeB(), Lines{"received 7 cancelled"});
  network_.AdvanceTo(1000);
  Lines a = TakeA();
  std::ranges::sort(a);
  EXPECT_EQ(a, (Lines{"failed: the other end closed it", "sent 1 peer lost"}));
}

TEST_F(SimulatedPair, CutsOneDirectionOnly) {
  network_.CutOneWay("b", "a", Silence::kSilent);
  SendToB(kSmall, 1);
  const auto answer = Bytes(kSmall, 2);  // of its own: the first message's belongs to the wire
  b_.Send(to_a_, {.position = 2}, answer.data(), kSmall, 2);
  network_.AdvanceTo(1000);
  EXPECT_EQ(TakeA(), Lines{"sent 1 ok"});
  EXPECT_EQ(TakeB(), (Lines{"sent 2 ok", "announced 1 of 10"}));
  auto memory = Bytes(kSmall, 0);
  b_.Accept(diary_b_.arrivals[0], memory.data(), 7);
  network_.AdvanceTo(1000);
  EXPECT_EQ(TakeB(), Lines{"received 7 ok"});
  EXPECT_EQ(memory, Bytes(kSmall, 1));
}

TEST_F(SimulatedPair, LetsAVanishedNodeDoNothing) {
  SendToB(kLarge, 1);
  network_.Vanish("b", Silence::kTold);
  network_.AdvanceTo(10000);
  EXPECT_EQ(TakeB(), Lines{});
  Lines a = TakeA();
  std::ranges::sort(a);
  EXPECT_EQ(a, (Lines{"failed: simulated end of the node", "sent 1 peer lost"}));
}

TEST_F(SimulatedPair, InjectsMessagesFromNobody) {
  network_.Inject("b", {.position = 5}, Bytes(3, 4));
  network_.AdvanceTo(0);
  EXPECT_EQ(TakeB(), Lines{"announced 5 of 3"});
  auto memory = Bytes(3, 0);
  b_.Accept(diary_b_.arrivals[0], memory.data(), 1);
  network_.AdvanceTo(0);
  EXPECT_EQ(TakeB(), Lines{"received 1 ok"});
  EXPECT_EQ(memory, Bytes(3, 4));
}

TEST_F(SimulatedPair, PairsLinksOfOneKeyWhateverTheirOrder) {
  const LinkId third_to_a = *b_.Connect("simulated:a", 3, 0);
  const LinkId second_to_b = *a_.Connect("simulated:b", 2, 0);
  const LinkId second_to_a = *b_.Connect("simulated:a", 2, 0);
  b_.Close(third_to_a);
  a_.Close(to_b_);
  network_.AdvanceTo(1000);
  EXPECT_EQ(TakeB(), Lines{"failed: the other end closed it"});
  bytes_ = Bytes(kSmall, 1);
  a_.Send(second_to_b, {.key = 2, .position = 1}, bytes_.data(), kSmall, 1);
  b_.Send(second_to_a, {.key = 2, .position = 2}, bytes_.data(), kSmall, 2);
  network_.AdvanceTo(2000);
  EXPECT_EQ(TakeA(), (Lines{"sent 1 ok", "announced 2 of 10"}));
  EXPECT_EQ(TakeB(), (Lines{"sent 2 ok", "announced 1 of 10"}));
}

TEST_F(SimulatedPair, RefusesAnAddressThatIsNobodys) {
  EXPECT_EQ(a_.Connect("simulated:z", 0, 0).error().code(), Code::kUnavailable);
}

TEST(SimulatedNetwork, NeedNotTellOfAClose) {
  SimulatedNetwork network({.latency_ns = 100, .eager_size = 0});
  Wire& a = network.AddWire("a");
  Wire& b = network.AddWire("b");
  const LinkId link = *a.Connect("simulated:b", 0, 0);
  ASSERT_TRUE(b.Connect("simulated:a", 0, 0).ok());
  const auto bytes = Bytes(10, 1);
  a.Send(link, {.position = 1}, bytes.data(), bytes.size(), 1);
  network.AdvanceTo(100);
  Diary diary;
  b.Progress(diary);
  auto memory = Bytes(10, 0);
  b.Accept(diary.arrivals.at(0), memory.data(), 7);
  a.Close(link);
  network.AdvanceTo(10000);
  b.Progress(diary);
  EXPECT_EQ(diary.lines, (Lines{"announced 1 of 10", "received 7 peer lost"}));
  EXPECT_EQ(memory, Bytes(10, 0));
}

TEST(SimulatedNetwork, LetsMessagesOvertakeEachOtherAlikeForTheSameSeed) {
  const auto run = [](std::uint64_t seed) {
    SimulatedNetwork network({.seed = seed, .latency_ns = 100, .jitter_ns = 1000});
    Wire& a = network.AddWire("a");
    Wire& b = network.AddWire("b");
    const LinkId link = *a.Connect("simulated:b", 0, 0);
    for (std::uint64_t i = 0; i < 20; ++i) a.Send(link, {.position = i}, nullptr, 0, i);
    network.AdvanceTo(10000);
    Diary diary;
    b.Progress(diary);
    return diary.lines;
  };
  const auto first = run(1);
  EXPECT_EQ(first.size(), 20U);
  EXPECT_FALSE(std::ranges::is_sorted(first));
  EXPECT_EQ(run(1), first);
  EXPECT_NE(run(2), first);
}

}  // namespace
}  // namespace headrace::transport
