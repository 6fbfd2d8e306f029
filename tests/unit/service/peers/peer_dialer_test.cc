// A leader that is reached on several rails, of which one is cut, and one whose address another
// node has.
#include "service/peers/peer_dialer.h"

#include <gtest/gtest.h>
#include <kj/async-io.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "service/peers/tls.h"
#include "tests/unit/service/peers/certified_nodes.h"
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
  void OnLeaderResumed(const std::string&, const std::string&) override { up_->fulfill(); }
  void OnLeaderDown(const std::string&, const Error& error) override {
    causes.push_back(error.text());
  }
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

// An address on which another node's service answers, as soon as somebody says so.
class Forwarder final : private kj::TaskSet::ErrorHandler {
 public:
  Forwarder(kj::Network& network, kj::WaitScope& scope, kj::uint port)
      : network_(network), port_(port), connections_(kj::heap<kj::TaskSet>(Errors())) {
    receiver_ = network.parseAddress("127.0.0.1", 0).wait(scope)->listen();
    accepting_ = AcceptNext().eagerlyEvaluate([](kj::Exception&&) {});
  }
  std::string address() { return "127.0.0.1:" + std::to_string(receiver_->getPort()); }
  // What is connected breaks.
  void Redirect(kj::uint port) {
    port_ = port;
    connections_ = kj::heap<kj::TaskSet>(Errors());
  }
  std::size_t count() const { return count_; }

 private:
  kj::Promise<void> AcceptNext() {
    return receiver_->accept().then([this](kj::Own<kj::AsyncIoStream> here) {
      ++count_;
      connections_->add(Forward(kj::mv(here)));
      return AcceptNext();
    });
  }
  kj::Promise<void> Forward(kj::Own<kj::AsyncIoStream> here) {
    return network_.parseAddress("127.0.0.1", port_)
        .then([](kj::Own<kj::NetworkAddress> address) {
          auto connected = address->connect();
          return connected.attach(kj::mv(address));
        })
        .then([here = kj::mv(here)](kj::Own<kj::AsyncIoStream> there) mutable {
          auto both = here->pumpTo(*there).ignoreResult().exclusiveJoin(
              there->pumpTo(*here).ignoreResult());
          return both.attach(kj::mv(here), kj::mv(there));
        });
  }
  void taskFailed(kj::Exception&&) override {}
  kj::TaskSet::ErrorHandler& Errors() { return *this; }

  kj::Network& network_;
  kj::uint port_;
  std::size_t count_ = 0;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::Own<kj::TaskSet> connections_;
  kj::Promise<void> accepting_ = nullptr;
};

class CertifiedDialer : public CertifiedNodes {
 protected:
  ~CertifiedDialer() noexcept override {}  // its loop's may throw

  // The leader is a; its address is that of node c until c was dialled so often. Further addresses
  // of the leader: those given.
  void ResumesAfterAnotherNode(TimeNs detection_ns, std::vector<std::string> further,
                               std::size_t dialled) {
    kj::Timer& timer = loop_.io.provider->getTimer();
    kj::Network& network = loop_.io.provider->getNetwork();
    StandOptions leads = Node("a");
    leads.peers.detection_ns = detection_ns;
    ControlStand leader(leads);
    ControlStand other(Node("c"));
    const StandOptions own = Node("b");
    auto security = PeerSecurity::Create({.node_name = "b",
                                          .authority_path = own.peers.tls_authority,
                                          .certificate_path = own.peers.tls_certificate,
                                          .key_path = own.peers.tls_key},
                                         timer, [](const std::string&) {});
    ASSERT_TRUE(security.ok()) << security.error().text();
    Forwarder forwarder(network, loop_.io.waitScope, leader.peer_port());
    std::vector<std::string> addresses{forwarder.address()};
    addresses.insert(addresses.end(), further.begin(), further.end());
    Follows follows;
    kj::Promise<void> up = follows.Up();
    PeerDialer dialer({.leader = forwarder.address(),
                       .addresses = std::move(addresses),
                       .detection_ns = detection_ns},
                      follows, **security, network, timer);
    loop_.Wait(kj::mv(up));
    up = follows.Up();
    const std::size_t before = forwarder.count();
    forwarder.Redirect(other.peer_port());
    for (int i = 0; i < 3000 && forwarder.count() < before + dialled; ++i) {
      loop_.Wait(timer.afterDelay(10 * kj::MILLISECONDS));
    }
    // The handshake with it has ended, too.
    loop_.Wait(timer.afterDelay(500 * kj::MILLISECONDS));
    forwarder.Redirect(leader.peer_port());
    loop_.Wait(kj::mv(up));
    EXPECT_TRUE(follows.causes.empty()) << follows.causes.front();
    EXPECT_EQ(dialer.View().name, "a");
  }

  CallerLoop loop_;
};

// It would answer that it does not know the channel, or lead the job from then on.
TEST_F(CertifiedDialer, DoesNotGoOnWithAnotherNodeThatHasTheLeadersAddress) {
  ResumesAfterAnotherNode(60 * kSecond, {}, 2);
}

// An address that failed once is left out for a while only, since nothing may come from the others.
TEST_F(CertifiedDialer, TriesAnAddressAgainWhereTheOthersAreSilent) {
  auto silent = loop_.io.provider->getNetwork()
                    .parseAddress("127.0.0.1", 0)
                    .wait(loop_.io.waitScope)
                    ->listen();
  ResumesAfterAnotherNode(24 * kSecond, {"127.0.0.1:" + std::to_string(silent->getPort())}, 1);
}

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
