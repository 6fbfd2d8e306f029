// Whatever knocks at the port where services meet: it is refused by name or cut off, and those who
// have met go on.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "service/peers/peer_link.h"
#include "service/peers/peer_listener.h"
#include "service/peers/peer_wire.h"
#include "service/peers/tls.h"
#include "tests/support/open_descriptors.h"
#include "tests/unit/service/peers/peer_caller.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::JobFailed;
using service::JobFormed;

class PeersHostile : public testing::Test {
 protected:
  ~PeersHostile() noexcept override {}

  void ExpectHelloRefused(const PeerHelloCall& fields, Code code,
                          const std::vector<std::string>& parts) {
    PeerCaller caller(loop_, a_.peer_port());
    const Answered answered = caller.Hello(fields);
    EXPECT_EQ(answered.code, code) << answered.text;
    for (const std::string& part : parts) {
      EXPECT_NE(answered.text.find(part), std::string::npos) << answered.text;
    }
  }
  // Two ranks meet here as if nothing were.
  void ExpectServes() {
    std::vector<AttachedRank> ranks;
    const std::size_t before = a_.dispatch().Count<JobFormed>();
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.push_back(AttachTo(
          loop_, a_,
          {.job = "honest" + std::to_string(before), .rank = rank, .rendezvous = a_.meeting()}));
    }
    EXPECT_TRUE(a_.dispatch().WaitFor<JobFormed>(before + 1));
  }

  CallerLoop loop_;
  ControlStand a_{NodeNamed("a")};
};

TEST_F(PeersHostile, NamesBothVersionsAndBothPrograms) {
  ExpectHelloRefused(
      {.protocol_version = 18, .program = "headraced 9.9", .node = "x"}, Code::kVersionMismatch,
      {"headraced 0.1.0 on node a speaks peer protocol 17", "headraced 9.9 on node x speaks 18"});
}

TEST_F(PeersHostile, NamesTheNodeWhoseNameIsTaken) {
  PeerCaller first(loop_, a_.peer_port());
  ASSERT_EQ(first.Hello({.node = "x", .instance = 1}).code, Code::kOk);
  ExpectHelloRefused({.node = "x", .instance = 2}, Code::kAlreadyExists,
                     {"node name x", "taken by the one at 127.0.0.1:"});
}

TEST_F(PeersHostile, RefusesNamesLanesAndAddressesThatAreNone) {
  ExpectHelloRefused({.node = ""}, Code::kCorrupt,
                     {"an invalid node name of 0 bytes", "1 to 63 printable ASCII"});
  ExpectHelloRefused({.node = "two words"}, Code::kCorrupt, {});
  ExpectHelloRefused({.node = std::string(64, 'x')}, Code::kCorrupt, {});
  ExpectHelloRefused({.addresses = {}}, Code::kMismatch, {"node x has 0 lanes", "node a has 1"});
  ExpectHelloRefused({.addresses = std::vector<std::string>(service::kLanesMax + 1)},
                     Code::kCorrupt, {"addresses of 17 lanes"});
  ExpectHelloRefused({.addresses = {std::string(service::kLaneAddressMax + 1, 'x')}},
                     Code::kCorrupt, {"address of 16385 bytes"});
}

TEST_F(PeersHostile, OneHelloForEachConnection) {
  PeerCaller caller(loop_, a_.peer_port());
  ASSERT_EQ(caller.Hello({}).code, Code::kOk);
  EXPECT_EQ(caller.Hello({}).code, Code::kAlreadyExists);
}

TEST_F(PeersHostile, GarbageEndsItsConnectionAndNothingElse) {
  std::mt19937 dice(1);
  for (int knock = 0; knock < 50; ++knock) {
    const UniqueFd socket = ConnectTcp(a_.peer_port());
    std::vector<unsigned char> garbage(1 + dice() % 4096);
    for (unsigned char& byte : garbage) byte = static_cast<unsigned char>(dice());
    [[maybe_unused]] const ssize_t sent =
        ::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    ::shutdown(socket.get(), SHUT_WR);
    EXPECT_TRUE(WaitForClose(socket.get()));
  }
  ExpectServes();
}

TEST_F(PeersHostile, GarbageAfterTheGreetingEndsItsConnectionAndNothingElse) {
  std::mt19937 dice(2);
  for (int knock = 0; knock < 50; ++knock) {
    const UniqueFd socket = ConnectTcp(a_.peer_port());
    std::string garbage(service::kGreeting);
    for (unsigned count = 8 + dice() % 2048; count > 0; --count) {
      // Small numbers pass for lengths and pointers more often than any.
      garbage.push_back(static_cast<char>(dice() % 4 == 0 ? dice() : dice() % 4));
    }
    [[maybe_unused]] const ssize_t sent =
        ::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    ::shutdown(socket.get(), SHUT_WR);
    EXPECT_TRUE(WaitForClose(socket.get()));
  }
  ExpectServes();
}

TEST_F(PeersHostile, AFloodOfSilentConnectionsKeepsNobodyOut) {
  std::vector<UniqueFd> flood;
  for (int knock = 0; knock < 400; ++knock) {
    flood.push_back(ConnectTcp(a_.peer_port()));
    // Half of them get as far as they can without saying who they are.
    if (knock % 2 == 0) {
      ASSERT_EQ(::send(flood.back().get(), service::kGreeting.data(), service::kGreeting.size(),
                       MSG_NOSIGNAL),
                static_cast<ssize_t>(service::kGreeting.size()));
    }
  }
  flood.erase(flood.begin() + 100, flood.end());
  ExpectServes();
}

// The service finds them accepted and gone: even writing its greeting fails then.
TEST_F(PeersHostile, ConnectionsThatAreResetAtOnceKeepNobodyOut) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  for (int knock = 0; knock < 1000; ++knock) {
    const UniqueFd socket = ConnectTcp(a_.peer_port());
    ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  }
  ExpectServes();
}

TEST_F(PeersHostile, WhoSaysNoHelloIsCutOffInTime) {
  const UniqueFd socket = ConnectTcp(a_.peer_port());
  ASSERT_EQ(::send(socket.get(), service::kGreeting.data(), service::kGreeting.size(), 0), 8);
  const TimeNs connected_ns = MonotonicNow();
  EXPECT_TRUE(WaitForClose(socket.get()));
  EXPECT_GE(MonotonicNow() - connected_ns, 4 * kSecond);
  EXPECT_LT(MonotonicNow() - connected_ns, 8 * kSecond);
}

TEST_F(PeersHostile, TooManyMessagesAtOnceEndTheConnection) {
  PeerCaller caller(loop_, a_.peer_port());
  ASSERT_EQ(caller.Hello({}).code, Code::kOk);
  caller.SendMessages(
      std::vector<service::PeerMessage>(service::kMessagesPerCallMax + 1, service::ForgetJob{1}));
  EXPECT_TRUE(caller.WaitForEnd());
}

TEST_F(PeersHostile, NonsenseInAMessageEndsTheConnection) {
  const double endless = std::numeric_limits<double>::infinity();
  const std::vector<service::PeerMessage> nonsense = {
      service::JoinJob{.job = 1, .name = "two words", .world_size = 2},
      service::JoinJob{.job = 1, .name = "train", .world_size = 0},
      service::JoinJob{.job = 1, .name = "train", .world_size = 65},
      service::JobMeasured{.job = 1, .costs = {{.startup_s = endless, .s_per_byte = 0}}},
      service::JobMeasured{.job = 1, .costs = {{.startup_s = 0, .s_per_byte = -1}}},
      service::StartJob{.job = 1, .costs = std::vector<transport::CostLine>(17)}};
  for (const service::PeerMessage& message : nonsense) {
    PeerCaller caller(loop_, a_.peer_port());
    ASSERT_EQ(caller.Hello({}).code, Code::kOk);
    caller.SendMessages({message});
    EXPECT_TRUE(caller.WaitForEnd()) << message.index();
  }
  ExpectServes();
}

TEST_F(PeersHostile, ANodeCannotSpeakForAnother) {
  std::vector<AttachedRank> ranks;
  ranks.push_back(AttachTo(loop_, a_, {.rank = 0, .rendezvous = a_.meeting()}));
  PeerCaller honest(loop_, a_.peer_port());
  ASSERT_EQ(honest.Hello({.node = "h", .instance = 1}).code, Code::kOk);
  ASSERT_TRUE(honest.SendMessages(
      {service::JoinJob{.job = 3, .name = "train", .world_size = 2, .uid = ::getuid()},
       service::ReportRankAttached{.job = 3, .rank = 1, .pid = 7}}));
  PeerCaller liar(loop_, a_.peer_port());
  ASSERT_EQ(liar.Hello({.node = "l", .instance = 2}).code, Code::kOk);
  ASSERT_TRUE(liar.SendMessages(
      {service::ReportJobFailed{.job = 3, .code = Code::kInternal, .cause = "forged"},
       service::ReportRankLost{.job = 1, .rank = 0, .cause = "forged"}, service::ForgetJob{1},
       service::AnnounceJobFailed{.job = 1, .code = Code::kInternal, .cause = "forged"}}));
  ASSERT_TRUE(liar.Ping());
  ASSERT_TRUE(a_.lane().WaitFor<service::OpenGroup>(1));
  EXPECT_EQ(a_.dispatch().Count<JobFailed>(), 0U);
}

TEST_F(PeersHostile, ConnectionsLeaveNoDescriptorBehind) {
  ExpectServes();
  const auto before = OpenDescriptors();
  for (int round = 0; round < 100; ++round) {
    PeerCaller caller(loop_, a_.peer_port());
    ASSERT_EQ(caller.Hello({}).code, Code::kOk);
    const UniqueFd garbage = ConnectTcp(a_.peer_port());
    ASSERT_EQ(::send(garbage.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    ASSERT_TRUE(WaitForClose(garbage.get()));
  }
  // The service closes its end a moment after the caller closed its own.
  for (int left = 100; left > 0 && OpenDescriptors() > before; --left) ::usleep(20'000);
  EXPECT_LE(OpenDescriptors(), before);
}

}  // namespace
}  // namespace headrace::support
