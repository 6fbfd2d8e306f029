// Two ends of a channel whose connections break: each message comes once, in order, and a channel
// is lost when it should be and no sooner.
#include "service/peers/peer_channel.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <kj/async-io.h>
#include <kj/timer.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headrace::service {
namespace {

// A stream that fails as a connection that is reset: whatever is under way, and whatever comes.
class BreakableStream final : public kj::AsyncIoStream {
 public:
  BreakableStream(kj::Own<kj::AsyncIoStream> inner, kj::ForkedPromise<void>& broken,
                  const bool& silent)
      : inner_(kj::mv(inner)), broken_(broken), silent_(silent) {}

  kj::Promise<std::size_t> read(void* buffer, std::size_t least, std::size_t most) override {
    return UnlessBroken(inner_->read(buffer, least, most));
  }
  kj::Promise<std::size_t> tryRead(void* buffer, std::size_t least, std::size_t most) override {
    return UnlessBroken(inner_->tryRead(buffer, least, most));
  }
  kj::Promise<void> write(const void* buffer, std::size_t size) override {
    if (silent_) return kj::READY_NOW;
    return inner_->write(buffer, size).exclusiveJoin(broken_.addBranch());
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    if (silent_) return kj::READY_NOW;
    return inner_->write(pieces).exclusiveJoin(broken_.addBranch());
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }
  void shutdownWrite() override { inner_->shutdownWrite(); }

 private:
  kj::Promise<std::size_t> UnlessBroken(kj::Promise<std::size_t> read) {
    return read.exclusiveJoin(broken_.addBranch().then([] { return std::size_t{0}; }));
  }

  kj::Own<kj::AsyncIoStream> inner_;
  kj::ForkedPromise<void>& broken_;
  const bool& silent_;
};

// A connection in this process.
class Wire {
 public:
  Wire() {
    auto pair = kj::newPromiseAndFulfiller<void>();
    break_ = kj::mv(pair.fulfiller);
    broken_ = pair.promise.fork();
  }
  SecuredPeer End(int which) {
    return {.stream = kj::heap<BreakableStream>(kj::mv(pipe_.ends[which]), broken_, silent_),
            .address = which == 0 ? "10.0.0.1:4711" : "10.0.0.2:7733",
            .node_names = {}};
  }
  // Nothing arrives any more, and nobody is told.
  void Cut() { silent_ = true; }
  void Break() { break_->reject(KJ_EXCEPTION(DISCONNECTED, "Connection reset by peer")); }

 private:
  kj::TwoWayPipe pipe_ = kj::newTwoWayPipe();
  kj::Own<kj::PromiseFulfiller<void>> break_;
  kj::ForkedPromise<void> broken_ = nullptr;
  bool silent_ = false;
};

TimeNs TimeOf(const kj::Timer& timer) {
  return (timer.now() - kj::origin<kj::TimePoint>()) / kj::NANOSECONDS;
}

// One end, and what has come there.
class End final : public PeerLink::Owner, public PeerChannel::Owner {
 public:
  End(std::string name, const kj::Timer& timer) : timer_(timer) {
    self_.protocol_version = schema::PEER_PROTOCOL_VERSION;
    self_.program = "headraced 9.9.9";
    self_.name = std::move(name);
    self_.instance = 1;
  }
  const NodeFacts& Self() const override { return self_; }
  Result<std::uint64_t> Greet(PeerLink&, const NodeFacts&, const ChannelHello& hello) override {
    return hello.resumes ? channel->Resume(hello.received) : std::uint64_t{0};
  }
  void OnGreeted(PeerLink&) override { channel->Attach(kj::mv(link)); }
  void OnMessage(PeerChannel&, const PeerMessage& message) override {
    received.push_back(std::get<ForgetJob>(message).job);
  }
  void OnLinkNeeded(PeerChannel& asks) override {
    asked_ns.push_back(TimeOf(timer_));
    EXPECT_EQ(&asks, channel.get());
  }
  void Send() { channel->Send(ForgetJob{++sent}); }
  // Whether all that the other end has sent has come once and in order.
  bool HasAllOf(const End& other) const {
    if (received.size() != other.sent) return false;
    for (std::uint32_t i = 0; i < received.size(); ++i) {
      if (received[i] != i + 1) return false;
    }
    return true;
  }

  kj::Own<PeerChannel> channel;
  kj::Own<PeerLink> link;  // before it is greeted
  std::vector<std::uint32_t> received;
  std::uint32_t sent = 0;
  std::vector<TimeNs> asked_ns;

 private:
  const kj::Timer& timer_;
  NodeFacts self_;
};

class TwoEnds {
 public:
  TwoEnds(kj::Timer& timer, TimeNs detection_ns)
      : a("a", timer), b("b", timer), timer_(timer), detection_ns_(detection_ns) {
    const ChannelId id = DrawChannelId();
    a.channel = kj::heap<PeerChannel>(id, detection_ns, timer, a);
    b.channel = kj::heap<PeerChannel>(id, detection_ns, timer, b);
  }
  ~TwoEnds() noexcept(false) {
    hello_ = nullptr;
    a.link = nullptr;
    b.link = nullptr;
  }

  // `a` connects, as when it begins or as when it resumes.
  void Connect() {
    hello_ = nullptr;
    a.link = nullptr;
    b.link = nullptr;
    wires_.push_back(kj::heap<Wire>());
    const TimeNs interval_ns = detection_ns_ / 6;
    Wire& wire = *wires_.back();
    b.link = kj::heap<PeerLink>(
        wire.End(0), PeerLink::Options{capnp::rpc::twoparty::Side::SERVER, interval_ns}, timer_, b);
    a.link = kj::heap<PeerLink>(
        wire.End(1), PeerLink::Options{capnp::rpc::twoparty::Side::CLIENT, interval_ns}, timer_, a);
    hello_ = a.link->SendHello(a.channel->Hello())
                 .then([this](const Result<PeerLink::Answer>& answer) {
                   if (!answer || !a.channel->Resume(answer->received)) return;
                   happened = a.channel->Attach(kj::mv(a.link));
                 })
                 .eagerlyEvaluate([](kj::Exception&&) {});
  }
  void Break() { wires_.back()->Break(); }
  void Cut() { wires_.back()->Cut(); }

  End a;
  End b;
  std::string happened;

 private:
  kj::Timer& timer_;
  TimeNs detection_ns_;
  std::vector<kj::Own<Wire>> wires_;
  kj::Promise<void> hello_ = nullptr;
};

// Without an operating system and without time: a loop that is turned step by step.
struct SteppedLoop {
  // A connection reads so many messages, and waits for a timer that is due at once.
  void Turn(kj::uint turns) {
    loop.run(turns);
    timer.advanceTo(timer.now());
  }
  void TurnToEnd() {
    for (int i = 0; i < 200; ++i) Turn(kj::maxValue);
  }

  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  kj::TimerImpl timer{kj::origin<kj::TimePoint>()};
};

constexpr TimeNs kLong = 3600 * kSecond;

// A call is under way over many turns of the loop; the connection breaks after each of them once.
TEST(PeerChannel, DeliversEachMessageOnceWhereverItsConnectionBreaks) {
  constexpr kj::uint kTurnsMax = 600;
  std::size_t broke_between = 0;
  for (kj::uint turns = 0; turns < kTurnsMax; ++turns) {
    SteppedLoop stepped;
    TwoEnds ends(stepped.timer, kLong);
    ends.Connect();
    stepped.TurnToEnd();
    for (int i = 0; i < 40; ++i) ends.a.Send();
    for (int i = 0; i < 40; ++i) ends.b.Send();
    stepped.Turn(turns);
    broke_between += ends.a.received.size() < 40 && !ends.a.received.empty() ? 1 : 0;
    ends.Break();
    stepped.TurnToEnd();
    ends.Connect();
    stepped.TurnToEnd();
    ASSERT_TRUE(ends.b.HasAllOf(ends.a)) << "after turn " << turns;
    ASSERT_TRUE(ends.a.HasAllOf(ends.b)) << "after turn " << turns;
    ASSERT_EQ(ends.a.channel->waiting_count() + ends.b.channel->waiting_count(), 0U);
    ASSERT_EQ(ends.a.channel->breaks().count, 1U);
    ASSERT_EQ(ends.b.channel->breaks().count, 1U);
  }
  EXPECT_GT(broke_between, 10U);
}

// Breaks again and again, also while the hello is under way, with messages at any time.
TEST(PeerChannel, DeliversEachMessageOnceOverManyConnections) {
  constexpr std::uint32_t kSeeds = 5000;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    std::mt19937 dice(seed);
    const auto roll = [&dice](kj::uint sides) { return static_cast<kj::uint>(dice() % sides); };
    SteppedLoop stepped;
    TwoEnds ends(stepped.timer, kLong);
    ends.Connect();
    stepped.TurnToEnd();
    // Fewer than kBreaksMax, so that all may come before any message does.
    for (std::uint32_t round = roll(4); round > 0; --round) {
      for (std::uint32_t left = roll(8); left > 0; --left) {
        for (std::uint32_t i = roll(20); i > 0; --i) (roll(2) == 0 ? ends.a : ends.b).Send();
        stepped.Turn(roll(60));
      }
      // Sometimes one end does not notice it before the other connects anew.
      ends.Break();
      stepped.Turn(roll(3) == 0 ? roll(20) : 1000);
      ends.Connect();
      if (roll(4) == 0) {
        stepped.Turn(roll(60));
        ends.Connect();
      }
      stepped.Turn(roll(100));
    }
    // What has broken is noticed first.
    stepped.TurnToEnd();
    if (!ends.a.channel->linked() || !ends.b.channel->linked()) ends.Connect();
    stepped.TurnToEnd();
    ASSERT_TRUE(ends.b.HasAllOf(ends.a)) << "seed " << seed;
    ASSERT_TRUE(ends.a.HasAllOf(ends.b)) << "seed " << seed;
    ASSERT_EQ(ends.a.channel->waiting_count() + ends.b.channel->waiting_count(), 0U) << seed;
  }
}

// A message that breaks every connection, as one that the other end cannot read may.
TEST(PeerChannel, IsLostWhenTheSameMessageBreaksEveryConnection) {
  SteppedLoop stepped;
  TwoEnds ends(stepped.timer, kLong);
  std::optional<Error> lost;
  auto waits = ends.a.channel->WhenLost()
                   .then([&lost](const Error& error) { lost = error; })
                   .eagerlyEvaluate([](kj::Exception&&) {});
  ends.Connect();
  stepped.TurnToEnd();
  std::uint32_t breaks = 0;
  for (; breaks < 2 * kBreaksMax && !lost; ++breaks) {
    if (breaks == 0) ends.a.Send();
    ends.Break();
    stepped.TurnToEnd();
    if (!lost) ends.Connect();
    // The hello is answered, and the call that follows it is not.
    for (int turn = 0; turn < 200 && !lost && !ends.a.channel->linked(); ++turn) {
      stepped.Turn(1);
    }
  }
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code(), Code::kPeerLost);
  EXPECT_EQ(breaks, kBreaksMax);
}

TEST(PeerChannel, RefusesToGoOnAfterMessagesThatItNeverSent) {
  SteppedLoop stepped;
  TwoEnds ends(stepped.timer, kLong);
  std::optional<Error> lost;
  auto waits = ends.b.channel->WhenLost()
                   .then([&lost](const Error& error) { lost = error; })
                   .eagerlyEvaluate([](kj::Exception&&) {});
  ends.Connect();
  ends.b.Send();
  stepped.TurnToEnd();
  EXPECT_TRUE(ends.b.channel->Resume(0).ok());
  const Result<std::uint64_t> resumed = ends.b.channel->Resume(2);
  ASSERT_FALSE(resumed.ok());
  EXPECT_EQ(resumed.error().code(), Code::kCorrupt);
  stepped.TurnToEnd();
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code(), Code::kCorrupt);
}

TEST(PeerChannel, SaysGoodbyeAndWaitsForNobody) {
  SteppedLoop stepped;
  TwoEnds ends(stepped.timer, kLong);
  std::optional<Error> lost;
  auto waits = ends.b.channel->WhenLost()
                   .then([&lost](const Error& error) { lost = error; })
                   .eagerlyEvaluate([](kj::Exception&&) {});
  ends.Connect();
  stepped.TurnToEnd();
  for (int i = 0; i < 40; ++i) ends.a.Send();
  bool sent = false;
  auto goodbye = ends.a.channel->Finish("the service stops").then([&sent] { sent = true; });
  auto done = goodbye.eagerlyEvaluate([](kj::Exception&&) {});
  stepped.TurnToEnd();
  EXPECT_TRUE(sent);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code(), Code::kUnavailable);
  EXPECT_EQ(lost->text(), "the service stops");
  EXPECT_TRUE(ends.b.HasAllOf(ends.a));
  EXPECT_TRUE(ends.b.asked_ns.empty());
}

// In steps of a simulated time.
class PeerChannelTimes : public testing::Test {
 protected:
  static constexpr TimeNs kDetection = 600 * kMillisecond;
  static constexpr TimeNs kStep = kMillisecond;
  ~PeerChannelTimes() noexcept override = default;

  void SetUp() override {
    ends_.Connect();
    Run(50 * kMillisecond);
    ASSERT_TRUE(ends_.a.channel->linked() && ends_.b.channel->linked());
    waits_ = ends_.a.channel->WhenLost()
                 .then([this](const Error& error) {
                   lost_ = error;
                   lost_ns_ = Now();
                 })
                 .eagerlyEvaluate([](kj::Exception&&) {});
  }
  TimeNs Now() const { return TimeOf(stepped_.timer); }
  void Run(TimeNs time_ns) {
    for (TimeNs passed = 0; passed < time_ns; passed += kStep) Jump(kStep);
  }
  // At once, as for a process that was stopped.
  void Jump(TimeNs time_ns) {
    stepped_.timer.advanceTo(stepped_.timer.now() + time_ns * kj::NANOSECONDS);
    for (int i = 0; i < 20; ++i) stepped_.loop.run();
  }

  SteppedLoop stepped_;
  TwoEnds ends_{stepped_.timer, kDetection};
  std::optional<Error> lost_;
  TimeNs lost_ns_ = kNever;
  kj::Promise<void> waits_ = nullptr;
};

TEST_F(PeerChannelTimes, IsLostAfterTheGraceTimeWhenNobodyAnswersAfterABreak) {
  const TimeNs broke_ns = Now();
  ends_.Break();
  Run(LinkGrace(kDetection) - kStep);
  EXPECT_FALSE(lost_);
  ASSERT_EQ(ends_.a.asked_ns.size(), 1U);
  Run(3 * kStep);
  ASSERT_TRUE(lost_);
  EXPECT_EQ(lost_->text(),
            "the connection to node b broke: its service exited, was killed or closed it");
  EXPECT_GE(lost_ns_ - broke_ns, LinkGrace(kDetection));
  static_assert(LinkGrace(kDetection) < kDetection);
}

TEST_F(PeerChannelTimes, IsLostAtOnceWhenNobodyListensAfterABreak) {
  ends_.Break();
  Run(10 * kMillisecond);
  EXPECT_FALSE(lost_);
  ends_.a.channel->OnRefused();
  Run(kStep);
  EXPECT_TRUE(lost_);
}

TEST_F(PeerChannelTimes, WaitsForTheDetectionTimeWhenTheOtherServiceLives) {
  const TimeNs broke_ns = Now();
  ends_.Break();
  Run(10 * kMillisecond);
  ends_.a.channel->OnReached();
  Run(kDetection / 2);
  EXPECT_FALSE(lost_);
  Run(kDetection);
  ASSERT_TRUE(lost_);
  // Something was answered within a ping's interval before the break.
  EXPECT_GE(lost_ns_ - broke_ns, kDetection - kDetection / 6 - 2 * kStep);
  EXPECT_LE(lost_ns_ - broke_ns, kDetection + 2 * kStep);
}

TEST_F(PeerChannelTimes, TellsHowLongItWasWithoutAConnection) {
  const TimeNs broke_ns = Now();
  ends_.Break();
  Run(50 * kMillisecond);
  ends_.Connect();
  Run(30 * kMillisecond);
  ASSERT_TRUE(ends_.a.channel->linked());
  EXPECT_GE(ends_.a.channel->breaks().last_ns, 45 * kMillisecond);
  EXPECT_LE(ends_.a.channel->breaks().time_ns, Now() - broke_ns);
  EXPECT_NE(ends_.happened.find("node b broke"), std::string::npos) << ends_.happened;
  EXPECT_NE(ends_.happened.find("it goes on at 10.0.0.2:7733 after 0.0"), std::string::npos);
  Run(kDetection);
  EXPECT_FALSE(lost_);
}

TEST_F(PeerChannelTimes, AsksForAnotherConnectionAfterHalfOfTheDetectionTime) {
  const TimeNs silent_ns = Now();
  ends_.Cut();
  Run(kStep);
  EXPECT_TRUE(ends_.a.asked_ns.empty());
  Run(kDetection + 2 * kStep);
  ASSERT_EQ(ends_.a.asked_ns.size(), 1U);
  const TimeNs asked_after_ns = ends_.a.asked_ns.front() - silent_ns;
  EXPECT_GE(asked_after_ns, kDetection / 2 - kDetection / 6 - 2 * kStep);
  EXPECT_LE(asked_after_ns, kDetection / 2 + 2 * kStep);
  // Nobody has connected anew.
  ASSERT_TRUE(lost_);
  EXPECT_EQ(lost_->text(), "node b does not answer for 0.6 s");
  EXPECT_TRUE(ends_.a.channel->silent());
  EXPECT_LE(lost_ns_ - silent_ns, kDetection + 2 * kStep);
}

TEST_F(PeerChannelTimes, GoesOnOverAnotherConnectionWhereTheFirstIsSilent) {
  ends_.Cut();
  ends_.a.Send();
  ends_.b.Send();
  for (int i = 0; i < 1000 && ends_.a.asked_ns.empty(); ++i) Run(kStep);
  ends_.Connect();
  Run(2 * kDetection);
  EXPECT_FALSE(lost_);
  EXPECT_TRUE(ends_.b.HasAllOf(ends_.a) && ends_.a.HasAllOf(ends_.b));
  EXPECT_NE(ends_.happened.find("node b did not answer for 0."), std::string::npos);
}

// The other end has given it up by then, and does not look for this one.
TEST_F(PeerChannelTimes, IsLostByABreakWhenThisProcessWasStoppedForTheDetectionTime) {
  Jump(2 * kDetection);
  EXPECT_FALSE(lost_);
  ends_.Break();
  Run(kStep);
  ASSERT_TRUE(lost_);
  EXPECT_NE(lost_->text().find("the connection to node b broke"), std::string::npos);
  EXPECT_TRUE(ends_.a.asked_ns.empty());
}

TEST_F(PeerChannelTimes, GoesOnAfterThisProcessWasStoppedForLess) {
  Jump(kDetection / 2);
  ends_.Break();
  Run(kStep);
  EXPECT_FALSE(lost_);
  EXPECT_EQ(ends_.a.asked_ns.size(), 1U);
}

}  // namespace
}  // namespace headrace::service
