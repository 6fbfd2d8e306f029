// A leader that is reached on several rails, of which one is cut.
#include "service/peers/peer_dialer.h"

#include <gtest/gtest.h>
#include <kj/async-io.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "service/peers/tls.h"
#include "tests/unit/service/peers/peer_caller.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::PeerDialer;
using service::PeerSecurity;

class Follows final : public PeerDialer::Owner {
 public:
  Follows() {
    self_.protocol_version = schema::PEER_PROTOCOL_VERSION;
    self_.program = "headraced 9.9.9";
    self_.name = "b";
    self_.instance = 1;
    self_.addresses = {"B0"};
  }
  const service::NodeFacts& Self() const override { return self_; }
  void OnLeaderUp(const std::string&) override { up_->fulfill(); }
  void OnLeaderUnreachable(const std::string&, const std::string& cause) override {
    causes.push_back(cause);
  }
  void OnLeaderRefused(const std::string&, const Error& error) override {
    causes.push_back(error.text());
  }
  void OnLeaderResumed(const std::string&, const std::string&) override {}
  void OnLeaderDown(const std::string&, const Error&) override {}
  void OnLeaderMessage(const std::string&, const service::PeerMessage&) override {}

  kj::Promise<void> Up() {
    auto pair = kj::newPromiseAndFulfiller<void>();
    up_ = kj::mv(pair.fulfiller);
    return kj::mv(pair.promise);
  }
  std::vector<std::string> causes;

 private:
  service::NodeFacts self_;
  kj::Own<kj::PromiseFulfiller<void>> up_;
};

TEST(PeerDialer, TriesTheAddressesOfALeaderInTurn) {
  CallerLoop loop;
  kj::Timer& timer = loop.io.provider->getTimer();
  ControlStand leader(NodeNamed("a"));
  auto security = PeerSecurity::Create({.node_name = "b", .plain_text = true}, timer,
                                       [](const std::string&) {});
  ASSERT_TRUE(security.ok()) << security.error().text();
  const std::string living = "127.0.0.1:" + std::to_string(leader.peer_port());
  const std::string dead = "127.0.0.1:1";
  Follows follows;
  kj::Promise<void> up = follows.Up();
  PeerDialer dialer({.leader = dead, .addresses = {dead, living}}, follows, **security,
                    loop.io.provider->getNetwork(), timer);
  loop.Wait(kj::mv(up));
  ASSERT_EQ(follows.causes.size(), 1U);
  EXPECT_EQ(dialer.addresses(), (std::vector<std::string>{living, dead}));
  EXPECT_EQ(dialer.View().address, living);
}

}  // namespace
}  // namespace headrace::support
