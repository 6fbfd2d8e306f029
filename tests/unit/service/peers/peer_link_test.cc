// Two ends of one link over real sockets, as they are once it is known who is there.
#include "service/peers/peer_link.h"

#include <gtest/gtest.h>
#include <kj/async-io.h>
#include <kj/timer.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/service/rpc/caller.h"

namespace headrace::service {
namespace {

class Node final : public PeerLink::Owner, public PeerLink::Traffic {
 public:
  explicit Node(std::string name) {
    self_.protocol_version = schema::PEER_PROTOCOL_VERSION;
    self_.program = "headraced 9.9.9";
    self_.name = std::move(name);
    self_.instance = 1;
  }
  const NodeFacts& Self() const override { return self_; }
  Result<std::uint64_t> Greet(PeerLink&, const NodeFacts& facts, const ChannelHello&) override {
    if (!refusal_.ok()) return refusal_.error();
    greeted_by_ = facts.name;
    return std::uint64_t{0};
  }
  void OnGreeted(PeerLink& link) override { link.Carry(*this); }
  UnsentMessages& unsent() override { return unsent_; }
  void OnAcknowledged(std::uint64_t number) override {
    ASSERT_TRUE(unsent_.Acknowledge(number).ok());
  }
  void Receive(std::uint64_t, const Result<PeerMessage>&) override { ++received_; }
  void OnPong() override {}

  void Refuse(Status refusal) { refusal_ = std::move(refusal); }
  const std::string& greeted_by() const { return greeted_by_; }
  std::size_t received() const { return received_; }

 private:
  NodeFacts self_;
  Status refusal_;
  std::string greeted_by_;
  std::size_t received_ = 0;
  UnsentMessages unsent_;
};

// Who connects has the certificate of `connecting_names`, who accepts that of `accepting_names`.
struct Names {
  std::vector<std::string> connecting;
  std::vector<std::string> accepting;
};

class PeerLinkTest : public testing::Test {
 protected:
  ~PeerLinkTest() noexcept override = default;
  // What the node "a", which connects, learns of the node "b".
  Result<NodeFacts> Meet(const Names& names) {
    kj::TwoWayPipe pipe = loop_.io.provider->newTwoWayPipe();
    PeerLink accepting({.stream = kj::mv(pipe.ends[0]),
                        .address = "10.0.0.1:4711",
                        .node_names = names.connecting,
                        .encrypted = true},
                       {.side = capnp::rpc::twoparty::Side::SERVER}, Timer(), b_);
    PeerLink connecting({.stream = kj::mv(pipe.ends[1]),
                         .address = "10.0.0.2:7733",
                         .node_names = names.accepting,
                         .encrypted = true},
                        {.side = capnp::rpc::twoparty::Side::CLIENT}, Timer(), a_);
    std::optional<Result<NodeFacts>> met;
    loop_.Wait(connecting.SendHello({.id = DrawChannelId()})
                   .then([&](const Result<PeerLink::Answer>& answer) {
                     met = answer ? Result<NodeFacts>(answer->facts) : answer.error();
                   }));
    return *met;
  }
  kj::Timer& Timer() { return loop_.io.provider->getTimer(); }

  support::CallerLoop loop_;
  Node a_{"a"};
  Node b_{"b"};
};

TEST_F(PeerLinkTest, NodesMeetUnderTheNamesOfTheirCertificates) {
  const Result<NodeFacts> met = Meet({.connecting = {"a"}, .accepting = {"x", "b"}});
  ASSERT_TRUE(met.ok()) << met.error().text();
  EXPECT_EQ(met->name, "b");
  EXPECT_EQ(b_.greeted_by(), "a");
}

TEST_F(PeerLinkTest, WhoConnectsUnderTheNameOfAnotherNodeIsRefused) {
  const Result<NodeFacts> met = Meet({.connecting = {"c"}, .accepting = {"b"}});
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.error().code(), Code::kPermissionDenied);
  EXPECT_EQ(b_.greeted_by(), "");
}

TEST_F(PeerLinkTest, ALeaderUnderTheNameOfAnotherNodeIsRefused) {
  const Result<NodeFacts> met = Meet({.connecting = {"a"}, .accepting = {"c"}});
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.error().code(), Code::kPermissionDenied);
}

// It becomes part of what clients of this node read.
TEST_F(PeerLinkTest, OfALongRefusalTheBeginningIsShown) {
  b_.Refuse(Error(Code::kPermissionDenied, "no: " + std::string(100'000, 'x')));
  const Result<NodeFacts> met = Meet({.connecting = {"a"}, .accepting = {"b"}});
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.error().code(), Code::kPermissionDenied);
  EXPECT_LT(met.error().text().size(), 600U);
  EXPECT_NE(met.error().text().find("no: xxx"), std::string::npos);
}

// Two links over a pipe without an operating system, on a loop that is turned step by step.
class SteppedLinks {
 public:
  SteppedLinks(PeerLink::Owner& a, PeerLink::Owner& b)
      : accepting(kj::heap<PeerLink>(Peer(kj::mv(pipe_.ends[0])),
                                     PeerLink::Options{capnp::rpc::twoparty::Side::SERVER}, timer_,
                                     b)),
        connecting(kj::heap<PeerLink>(Peer(kj::mv(pipe_.ends[1])),
                                      PeerLink::Options{capnp::rpc::twoparty::Side::CLIENT}, timer_,
                                      a)) {}

  void Turn(kj::uint turns) { loop_.run(turns); }
  void TurnToEnd() { loop_.run(); }

 private:
  static SecuredPeer Peer(kj::Own<kj::AsyncIoStream> stream) {
    return {.stream = kj::mv(stream), .address = "10.0.0.1:4711", .node_names = {}};
  }

  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  kj::TwoWayPipe pipe_ = kj::newTwoWayPipe();

 public:
  kj::Own<PeerLink> accepting;
  kj::Own<PeerLink> connecting;
};

// A call that has come in is carried out some turns of the loop later. Each of those is tried.
TEST(PeerLinkEnds, ACallUnderWayOutlivesItsLink) {
  constexpr kj::uint kTurnsMax = 400;
  for (const bool accepting : {true, false}) {
    std::size_t received_before = 0;
    for (kj::uint turns = 0; turns < kTurnsMax; ++turns) {
      Node a("a");
      Node b("b");
      SteppedLinks links(a, b);
      auto hello = links.connecting->SendHello({.id = DrawChannelId()})
                       .then([&](const Result<PeerLink::Answer>&) {
                         links.connecting->Carry(a);
                         for (int i = 0; i < 4; ++i) {
                           EXPECT_TRUE(a.unsent().Push(LeaveQuorum{.job = 1}));
                           EXPECT_TRUE(b.unsent().Push(LeaveQuorum{.job = 1}));
                         }
                         for (auto* const each : {&links.accepting, &links.connecting}) {
                           if (each->get() != nullptr) (*each)->Flush();
                         }
                       })
                       .eagerlyEvaluate([](kj::Exception&&) {});
      links.Turn(turns);
      Node& node = accepting ? b : a;
      if (!accepting) hello = nullptr;
      (accepting ? links.accepting : links.connecting) = nullptr;
      const std::size_t received = node.received();
      links.TurnToEnd();
      ASSERT_EQ(node.received(), received) << "after turn " << turns;
      received_before = std::max(received_before, received);
    }
    // So the turns in which calls come in were among them.
    EXPECT_EQ(received_before, 4U);
  }
}

}  // namespace
}  // namespace headrace::service
