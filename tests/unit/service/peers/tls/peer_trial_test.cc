// What `headracectl doctor --peer` is told, over TLS: name, port, certificates and versions, each
// of them wrong once.
#include "service/peers/peer_trial.h"

#include <capnp/rpc-twoparty.h>

#include "ipc/schema/peer.capnp.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/peers/tls/tls_stand.h"

namespace headrace::service {
namespace {

// A service of that version, for as much as one that looks at it asks.
class Bootstrap final : public schema::PeerBootstrap::Server {
 public:
  explicit Bootstrap(std::uint32_t version) : version_(version) {}
  kj::Promise<void> describe(DescribeContext context) override {
    if (version_ == 0) return Server::describe(context);  // of a release without it
    auto results = context.getResults();
    results.setProtocolVersion(version_);
    results.setProgram("headraced 9.9.9");
    results.setNode("b");
    return kj::READY_NOW;
  }

 private:
  std::uint32_t version_;
};

class PeerTrial : public TlsStand {
 protected:
  // What a service with `own` certificates finds at one with `theirs` that speaks `version`.
  std::vector<PeerStep> Try(const PeerSecurityOptions& own, const PeerSecurityOptions& theirs,
                            std::uint32_t version = schema::PEER_PROTOCOL_VERSION) {
    auto receiver = Network().parseAddress("127.0.0.1", 0).wait(io_.waitScope)->listen();
    const auto there = Make(theirs);
    capnp::TwoPartyServer server(kj::heap<Bootstrap>(version));
    auto serving = receiver->accept()
                       .then([&there](kj::Own<kj::AsyncIoStream> stream) {
                         return there->Accept(kj::mv(stream));
                       })
                       .then([&server](Answer answer) {
                         if (answer) server.accept(kj::mv(answer->stream));
                       })
                       .eagerlyEvaluate([](kj::Exception&&) {});
    return TryAt("127.0.0.1:" + std::to_string(receiver->getPort()), own);
  }
  std::vector<PeerStep> TryAt(const std::string& address, const PeerSecurityOptions& own) {
    const auto here = Make(own);
    return TryToReach(address, *here, Network(), io_.provider->getTimer()).wait(io_.waitScope);
  }
  kj::Network& Network() { return io_.provider->getNetwork(); }

  // All steps up to the last, `name`, are well; that one is not, and says `parts`.
  static void ExpectFailure(const std::vector<PeerStep>& steps, const std::string& name, Code code,
                            std::initializer_list<std::string> parts) {
    ASSERT_FALSE(steps.empty());
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) EXPECT_TRUE(steps[i].status.ok());
    EXPECT_EQ(steps.back().name, name);
    ASSERT_FALSE(steps.back().status.ok());
    const std::string text = steps.back().status.error().text();
    EXPECT_EQ(steps.back().status.code(), code) << text;
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
};

TEST_F(PeerTrial, FindsNothingWrongWithANodeOfItsAuthorityAndVersion) {
  const auto steps = Try(Node("a"), Node("b"));
  ASSERT_EQ(steps.size(), 4U);
  for (const PeerStep& step : steps) {
    EXPECT_TRUE(step.status.ok()) << step.name << ": " << step.status.error().text();
  }
  EXPECT_VARYING_TEXT(steps[2].found, "node b");
  EXPECT_VARYING_TEXT(steps[3].found, "9.9.9");
}

TEST_F(PeerTrial, NamesANameThatNobodyKnows) {
  ExpectFailure(TryAt("nowhere.invalid:7733", Node("a")), "name", Code::kUnavailable,
                {"cannot be resolved"});
}

TEST_F(PeerTrial, NamesAPortWhereNobodyListens) {
  const std::uint32_t port = [this] {
    auto receiver = Network().parseAddress("127.0.0.1", 0).wait(io_.waitScope)->listen();
    return receiver->getPort();
  }();
  ExpectFailure(TryAt("127.0.0.1:" + std::to_string(port), Node("a")), "port", Code::kUnavailable,
                {"Connection refused"});
}

TEST_F(PeerTrial, NamesANodeOfAnotherAuthority) {
  MakeAuthority("other");
  ExpectFailure(Try(Node("a"), Node("b", "other")), "handshake", Code::kPermissionDenied,
                {"its certificate is signed by another authority", "of one authority"});
}

TEST_F(PeerTrial, NamesANodeThatSpeaksPlainText) {
  ExpectFailure(Try(Node("a"), Plain("b")), "handshake", Code::kPermissionDenied,
                {"speaks plain text", "tls_authority"});
}

TEST_F(PeerTrial, NamesBothVersionsWhereTheyDiffer) {
  const std::uint32_t own = schema::PEER_PROTOCOL_VERSION;
  ExpectFailure(Try(Node("a"), Node("b"), own + 1), "version", Code::kVersionMismatch,
                {"node b runs headraced 9.9.9", std::to_string(own + 1), std::to_string(own)});
}

TEST_F(PeerTrial, KnowsAReleaseThatDoesNotSayItsVersion) {
  ExpectFailure(Try(Node("a"), Node("b"), 0), "version", Code::kVersionMismatch, {"older release"});
}

}  // namespace
}  // namespace headrace::service
