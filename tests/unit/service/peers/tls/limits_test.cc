// Time, counts, plain text and what is refused before any peer is there.
#include <sys/fsuid.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "tests/support/expect_text.h"
#include "tests/unit/service/peers/tls/tls_stand.h"

namespace headrace::service {
namespace {

class TlsLimits : public TlsStand {
 protected:
  TlsLimits() { by_hand_ = true; }
  void Pass(kj::Duration time) { timer_.advanceTo(timer_.now() + time); }
};

TEST_F(TlsLimits, GivesUpOnAPeerThatSaysNothing) {
  for (const PeerSecurityOptions& options : {Node("a"), Plain("a")}) {
    const auto security = Make(options);
    auto ends = Connection();
    auto answer = security->Accept(kj::mv(ends.first));
    EXPECT_FALSE(answer.poll(io_.waitScope));
    Pass(kHandshakeTimeout - 1 * kj::MILLISECONDS);
    EXPECT_FALSE(answer.poll(io_.waitScope));
    Pass(1 * kj::MILLISECONDS);
    ASSERT_TRUE(answer.poll(io_.waitScope));
    ExpectRefused(answer.wait(io_.waitScope), Code::kTimeout, {"127.0.0.1:"});
    // The connection is closed with it.
    EXPECT_LE(ends.second->readAllBytes().wait(io_.waitScope).size(), kGreeting.size());
  }
}

TEST_F(TlsLimits, GivesUpOnAPeerThatStopsInTheMiddle) {
  const auto a = Make(Node("a"));
  auto ends = Connection();
  auto answer = a->Accept(kj::mv(ends.first));
  ends.second->write("\x16\x03\x01\x02", 4).wait(io_.waitScope);
  EXPECT_FALSE(answer.poll(io_.waitScope));
  Pass(kHandshakeTimeout);
  ExpectRefused(answer.wait(io_.waitScope), Code::kTimeout, {"127.0.0.1:"});
}

TEST_F(TlsLimits, HoldsNoMoreThanSoManyHandshakesOpen) {
  const auto a = Make(Node("a"));
  const auto b = Make(Node("b"));
  std::vector<kj::Own<kj::AsyncIoStream>> silent;
  std::vector<kj::Promise<Answer>> answers;
  for (std::size_t i = 0; i < kHandshakesMax; ++i) {
    auto pipe = kj::newTwoWayPipe();
    silent.push_back(kj::mv(pipe.ends[0]));
    answers.push_back(a->Accept(kj::mv(pipe.ends[1])));
  }
  auto [accepted, connected] = Handshake(*a, *b);
  ExpectRefused(accepted, Code::kExhausted, {"128"});
  EXPECT_FALSE(connected.ok());
  answers.clear();
  auto [again, ignored] = Handshake(*a, *b);
  EXPECT_TRUE(again.ok()) << again.error().text();
}

TEST_F(TlsLimits, SpeaksPlainTextOnLoopbackWithoutAWord) {
  const auto a = Make(Plain("a"));
  const auto b = Make(Plain("b"));
  auto [accepted, connected] = Handshake(*a, *b);
  ASSERT_TRUE(accepted.ok()) << accepted.error().text();
  ASSERT_TRUE(connected.ok()) << connected.error().text();
  EXPECT_FALSE(accepted->encrypted);
  EXPECT_TRUE(accepted->node_names.empty());
  EXPECT_TRUE(CheckPeerName(*accepted, "anything").ok());
  char heard = 0;
  connected->stream->write("!", 1).wait(io_.waitScope);
  accepted->stream->read(&heard, 1).wait(io_.waitScope);
  EXPECT_EQ(heard, '!');
  EXPECT_TRUE(said_.empty());
}

// While it lives, what this thread makes belongs to another user. Needs root.
class OtherUser {
 public:
  explicit OtherUser(uid_t uid) { ::setfsuid(uid); }
  ~OtherUser() { ::setfsuid(::geteuid()); }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;
};

TEST_F(TlsLimits, OnLoopbackOnlyTheServicesOwnUserIsAPeer) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uid_t kNobody = 65534;
  const auto a = Make(Plain("a"));
  const auto strange = [this] {
    const OtherUser nobody(kNobody);
    return Connection();
  };
  auto gone = strange();
  gone.second = nullptr;
  ExpectRefused(a->Accept(kj::mv(gone.first)).wait(io_.waitScope), Code::kUnavailable,
                {"127.0.0.1:"});
  auto caller = strange();
  ExpectRefused(a->Accept(kj::mv(caller.first)).wait(io_.waitScope), Code::kPermissionDenied,
                {"127.0.0.1:", "uid 65534", "tls_certificate"});
  auto callee = strange();
  ExpectRefused(a->Connect(kj::mv(callee.second), "b:1").wait(io_.waitScope),
                Code::kPermissionDenied, {"b:1 (127.0.0.1:", "uid 65534", "tls_certificate"});

  // Whoever allows plain text with every host allows it with every user of this one.
  const auto trusting = Make(Plain("a", true));
  auto ends = strange();
  auto first = trusting->Accept(kj::mv(ends.first)).eagerlyEvaluate(nullptr);
  EXPECT_TRUE(trusting->Connect(kj::mv(ends.second), "b:1").wait(io_.waitScope).ok());
  EXPECT_TRUE(first.wait(io_.waitScope).ok());
}

TEST_F(TlsLimits, KnowsWhoseAServiceIsThatHasNotAcceptedYet) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const auto a = Make(Plain("a"));
  auto& network = io_.provider->getNetwork();
  const auto call = [&](const char* at, std::optional<uid_t> uid) {
    kj::Own<kj::ConnectionReceiver> port;
    {
      std::optional<OtherUser> other;
      if (uid) other.emplace(*uid);
      port = network.parseAddress(at, 0).wait(io_.waitScope)->listen();
    }
    auto address = network.parseAddress("127.0.0.1", port->getPort()).wait(io_.waitScope);
    auto connecting = a->Connect(address->connect().wait(io_.waitScope), "b:1");
    // It waits for the greeting of one that it speaks with.
    const bool refused = connecting.poll(io_.waitScope);
    if (refused) {
      EXPECT_EQ(connecting.wait(io_.waitScope).error().code(), Code::kPermissionDenied);
    }
    return !refused;
  };
  for (const char* const at : {"127.0.0.1", "0.0.0.0", "*"}) {
    EXPECT_TRUE(call(at, {})) << at;
    EXPECT_FALSE(call(at, 65534)) << at;
  }
}

TEST_F(TlsLimits, SpeaksPlainTextBeyondLoopbackOnlyWhenItIsSaid) {
  // What is no socket has no address, and so is not on loopback.
  const auto careful = Make(Plain("a"));
  auto pipe = kj::newTwoWayPipe();
  ExpectRefused(careful->Accept(kj::mv(pipe.ends[0])).wait(io_.waitScope), Code::kPermissionDenied,
                {"plain_text"});
  const auto trusting = Make(Plain("a", true));
  auto other = kj::newTwoWayPipe();
  auto first = trusting->Accept(kj::mv(other.ends[0])).eagerlyEvaluate(nullptr);
  const Answer second = trusting->Connect(kj::mv(other.ends[1]), "b:1").wait(io_.waitScope);
  EXPECT_TRUE(second.ok());
  EXPECT_TRUE(first.wait(io_.waitScope).ok());
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_VARYING_TEXT(said_[1], "b:1");
}

TEST_F(TlsLimits, RepeatsEveryMinuteThatPlainTextIsAllowed) {
  const auto trusting = Make(Plain("a", true));
  auto reminding = trusting->RemindOfPlainText().eagerlyEvaluate(nullptr);
  EXPECT_EQ(said_.size(), 1U);
  for (std::size_t minute = 1; minute <= 3; ++minute) {
    Pass(kPlainTextReminder - 1 * kj::MILLISECONDS);
    EXPECT_FALSE(reminding.poll(io_.waitScope));
    EXPECT_EQ(said_.size(), minute);
    Pass(1 * kj::MILLISECONDS);
    EXPECT_FALSE(reminding.poll(io_.waitScope));
    EXPECT_EQ(said_.size(), minute + 1);
  }
  EXPECT_VARYING_TEXT(said_.back(), "plain_text");
}

TEST_F(TlsLimits, RemindsOfNothingWhereTextIsNotPlainForOthers) {
  for (const PeerSecurityOptions& options : {Node("a"), Plain("a")}) {
    const auto security = Make(options);
    auto reminding = security->RemindOfPlainText();
    EXPECT_FALSE(reminding.poll(io_.waitScope));
    Pass(kPlainTextReminder);
    EXPECT_FALSE(reminding.poll(io_.waitScope));
  }
  EXPECT_TRUE(said_.empty());
}

TEST_F(TlsLimits, DescribesItselfForTheLog) {
  const std::string sealed = Make(Node("a"))->Describe();
  EXPECT_VARYING_TEXT(sealed, "node a");
  EXPECT_TEXT(Make(Plain("a"))->Describe());
  EXPECT_TEXT(Make(Plain("a", true))->Describe());
}

TEST_F(TlsLimits, RefusesToStartWithFilesThatPeersWouldNotBelieve) {
  MakeAuthority("other");
  const PeerSecurityOptions good = Node("a");
  EXPECT_EQ(Refusal(good), "made");

  PeerSecurityOptions wrong = good;
  wrong.key_path = Node("b").key_path;
  EXPECT_VARYING_TEXT(Refusal(wrong));
  wrong = good;
  wrong.node_name = "c";
  EXPECT_VARYING_TEXT(Refusal(wrong), "node a");
  wrong = good;
  wrong.authority_path = folder_ + "/other/authority.crt";
  EXPECT_VARYING_TEXT(Refusal(wrong));
  wrong = good;
  wrong.certificate_path.clear();
  EXPECT_VARYING_TEXT(Refusal(wrong));
  wrong = good;
  wrong.key_path = folder_ + "/none";
  EXPECT_VARYING_TEXT(Refusal(wrong), "tls_key", wrong.key_path);
  wrong.key_path = good.certificate_path;
  EXPECT_VARYING_TEXT(Refusal(wrong));
  wrong.key_path = folder_ + "/big";
  std::ofstream(wrong.key_path) << std::string((1U << 20U) + 1, 'x');
  EXPECT_VARYING_TEXT(Refusal(wrong), "1048576 bytes");
  wrong = good;
  wrong.certificate_path = good.key_path;
  EXPECT_VARYING_TEXT(Refusal(wrong));
}

TEST_F(TlsLimits, RefusesToStartWithAnExpiredCertificate) {
  MakeAuthority("ca2", std::time(nullptr) - 60 * kDay, 365);
  const std::string refusal = Refusal(Node("a", "ca2", std::time(nullptr) - 40 * kDay));
  EXPECT_VARYING_TEXT(refusal, "headracectl certs node a", "\"a\"");
}

}  // namespace
}  // namespace headrace::service
