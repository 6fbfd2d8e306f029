// Two ends of one link over real sockets, as they are once it is known who is there.
#include "service/peers/peer_link.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/unit/service/rpc/caller.h"

namespace headrace::service {
namespace {

class Node final : public PeerLink::Owner {
 public:
  explicit Node(std::string name) {
    self_.protocol_version = schema::PEER_PROTOCOL_VERSION;
    self_.program = "headraced 9.9.9";
    self_.name = std::move(name);
    self_.instance = 1;
  }
  const NodeFacts& Self() const override { return self_; }
  Status Greet(PeerLink&, const NodeFacts& facts) override {
    greeted_by_ = facts.name;
    return {};
  }
  void OnMessage(PeerLink&, const PeerMessage&) override {}

  const std::string& greeted_by() const { return greeted_by_; }

 private:
  NodeFacts self_;
  std::string greeted_by_;
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
    std::optional<Result<NodeFacts>> answer;
    loop_.Wait(connecting.SendHello().then([&](Result<NodeFacts> facts) { answer = facts; }));
    return *answer;
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

}  // namespace
}  // namespace headrace::service
