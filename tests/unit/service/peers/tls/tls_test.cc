// Who is let in and who is not, over real sockets, with certificates as headracectl makes them.
#include "tests/support/expect_text.h"
#include "tests/support/open_descriptors.h"
#include "tests/unit/service/peers/tls/tls_stand.h"

namespace headrace::service {
namespace {

TEST_F(TlsStand, KnowsBothNodesByTheirCertificatesAndCarriesWhatTheySay) {
  const auto a = Make(Node("a"));
  const auto b = Make(Node("b"));
  auto [accepted, connected] = Handshake(*a, *b);
  ASSERT_TRUE(accepted.ok()) << accepted.error().text();
  ASSERT_TRUE(connected.ok()) << connected.error().text();
  EXPECT_EQ(accepted->node_names, std::vector<std::string>{"b"});
  EXPECT_EQ(connected->node_names, std::vector<std::string>{"a"});
  EXPECT_TRUE(accepted->encrypted && connected->encrypted);
  EXPECT_EQ(accepted->address.substr(0, 10), "127.0.0.1:");
  EXPECT_EQ(connected->address.substr(0, 23), "node-b:7733 (127.0.0.1:");
  for (auto* ends : {&accepted, &connected}) {
    auto& from = *(*ends)->stream;
    auto& to = *(ends == &accepted ? connected : accepted)->stream;
    const std::string text(100'000, 'x');
    std::string heard(text.size(), ' ');
    auto written = from.write(text.data(), text.size()).eagerlyEvaluate(nullptr);
    to.read(heard.data(), heard.size()).wait(io_.waitScope);
    written.wait(io_.waitScope);
    EXPECT_EQ(heard, text);
  }
  EXPECT_TRUE(said_.empty());
}

TEST_F(TlsStand, StreamsOutliveWhoMadeThem) {
  auto a = Make(Node("a"));
  auto b = Make(Node("b"));
  auto [accepted, connected] = Handshake(*a, *b);
  ASSERT_TRUE(accepted.ok() && connected.ok());
  a.reset();
  b.reset();
  char heard = 0;
  accepted->stream->write("!", 1).wait(io_.waitScope);
  connected->stream->read(&heard, 1).wait(io_.waitScope);
  EXPECT_EQ(heard, '!');
}

TEST_F(TlsStand, RefusesAPeerWithoutACertificate) {
  const auto a = Make(Node("a"));
  auto context = Foreign(nullptr);
  const Answer answer = AcceptOf(
      *a, [&](kj::AsyncIoStream& stream) { return ShakeAndStay(*context, stream, false); });
  ExpectRefused(answer, Code::kPermissionDenied, {"127.0.0.1:", "headracectl certs node"});
}

TEST_F(TlsStand, RefusesACertificateOfAnotherAuthorityAtBothEnds) {
  MakeAuthority("other");
  const auto a = Make(Node("a"));
  const auto stranger = Make(Node("s", "other"));
  auto [accepted, connected] = Handshake(*a, *stranger);
  ExpectRefused(connected, Code::kPermissionDenied, {"node-b:7733", "headracectl certs node"});
  ExpectRefused(accepted, Code::kPermissionDenied, {"127.0.0.1:"});
  // The same seen from the side that accepts: this one believes us, and we do not believe it.
  const PeerSecurityOptions files = Node("s", "other");
  auto context = Foreign(&files);
  const Answer answer = AcceptOf(
      *a, [&](kj::AsyncIoStream& stream) { return ShakeAndStay(*context, stream, false); });
  ExpectRefused(answer, Code::kPermissionDenied, {"\"s\""});
}

TEST_F(TlsStand, LearnsThatItsOwnCertificateWasRefused) {
  MakeAuthority("other");
  const auto b = Make(Node("b"));
  const PeerSecurityOptions files = Node("a");
  auto context = Foreign(&files, "other");
  const Answer answer = ConnectTo(
      *b, [&](kj::AsyncIoStream& stream) { return ShakeAndStay(*context, stream, true); });
  ExpectRefused(answer, Code::kPermissionDenied, {"7733", "127.0.0.1"});
}

TEST_F(TlsStand, RefusesAnExpiredCertificateAtBothEnds) {
  MakeAuthority("ca2", std::time(nullptr) - 60 * kDay, 365);
  const auto a = Make(Node("a", "ca2"));
  const PeerSecurityOptions old = Node("b", "ca2", std::time(nullptr) - 40 * kDay);
  auto context = Foreign(&old, "ca2");
  ExpectRefused(
      AcceptOf(*a,
               [&](kj::AsyncIoStream& stream) { return ShakeAndStay(*context, stream, false); }),
      Code::kPermissionDenied, {"\"b\"", "headracectl certs node b"});
  ExpectRefused(
      ConnectTo(*a,
                [&](kj::AsyncIoStream& stream) { return ShakeAndStay(*context, stream, true); }),
      Code::kPermissionDenied, {"node-b:7733", "expired"});
}

TEST_F(TlsStand, RefusesACertificateOfTomorrow) {
  const auto a = Make(Node("a"));
  const PeerSecurityOptions early = Node("b", "ca", std::time(nullptr) + 2 * kDay);
  auto context = Foreign(&early);
  ExpectRefused(
      AcceptOf(*a,
               [&](kj::AsyncIoStream& stream) { return ShakeAndStay(*context, stream, false); }),
      Code::kPermissionDenied, {"\"b\""});
}

TEST_F(TlsStand, RefusesTheAuthorityItselfBecauseItIsNoNode) {
  const auto a = Make(Node("a"));
  const PeerSecurityOptions authority = {.node_name = "x",
                                         .authority_path = {},
                                         .certificate_path = folder_ + "/ca/authority.crt",
                                         .key_path = folder_ + "/ca/authority.key"};
  auto context = Foreign(&authority);
  ExpectRefused(
      AcceptOf(*a,
               [&](kj::AsyncIoStream& stream) { return ShakeAndStay(*context, stream, false); }),
      Code::kPermissionDenied);
}

// The authority may sign other things than nodes.
TEST_F(TlsStand, RefusesACertificateThatDoesNotNameTheService) {
  const auto a = Make(Node("a"));
  const PeerSecurityOptions files = Node("b");
  const auto certificate = ctl::ReadCertificate(files.certificate_path);
  const auto key = ctl::ReadKey(folder_ + "/ca/authority.key");
  ASSERT_TRUE(certificate.ok() && key.ok());
  X509& changed = *certificate->get();
  const int place = X509_get_ext_by_NID(&changed, NID_subject_alt_name, -1);
  ASSERT_GE(place, 0);
  X509_EXTENSION_free(X509_delete_ext(&changed, place));
  ASSERT_GT(X509_sign(&changed, key->get(), EVP_sha256()), 0);
  ASSERT_TRUE(
      ctl::WriteText(files.certificate_path, *ctl::PemOf(changed), 0644, /*force=*/true).ok());
  auto context = Foreign(&files);
  for (const bool accepting : {true, false}) {
    const auto act = [&](kj::AsyncIoStream& stream) {
      return ShakeAndStay(*context, stream, !accepting);
    };
    ExpectRefused(accepting ? AcceptOf(*a, act) : ConnectTo(*a, act), Code::kPermissionDenied,
                  {"\"headrace\""});
  }
  EXPECT_VARYING_TEXT(Refusal(files), "\"headrace\"");
}

TEST_F(TlsStand, RefusesANameThatIsNotTheCertificates) {
  const auto a = Make(Node("a"));
  const auto b = Make(Node("b"));
  auto [accepted, connected] = Handshake(*a, *b);
  ASSERT_TRUE(accepted.ok());
  EXPECT_TRUE(CheckPeerName(*accepted, "b").ok());
  const Status refused = CheckPeerName(*accepted, "c\x1b[2J");
  ASSERT_FALSE(refused.ok());
  EXPECT_VARYING_TEXT(refused.error().text(), "\"b\"", "\"c?[2J\"");
  EXPECT_EQ(refused.error().text().find('\x1b'), std::string::npos);
}

TEST_F(TlsStand, SaysOnBothEndsThatOneSpeaksPlainText) {
  const auto sealed = Make(Node("a"));
  const auto plain = Make(Plain("b"));
  auto [accepted, connected] = Handshake(*sealed, *plain);
  ExpectRefused(accepted, Code::kPermissionDenied, {"127.0.0.1:", "headracectl certs node"});
  ExpectRefused(connected, Code::kPermissionDenied, {"node-b:7733"});
  auto [plain_accepted, sealed_connected] = Handshake(*plain, *sealed);
  ExpectRefused(plain_accepted, Code::kPermissionDenied, {"127.0.0.1:"});
  ExpectRefused(sealed_connected, Code::kPermissionDenied, {"node-b:7733"});
}

TEST_F(TlsStand, TurnsGarbageAwayWhateverItLooksLike) {
  const auto sealed = Make(Node("a"));
  const auto plain = Make(Plain("b"));
  const std::vector<std::string> garbage = {"GET / HTTP/1.1\r\n\r\n", std::string(64, '\0'),
                                            std::string("\x16\x03\x01\x00\x05hello", 10),
                                            std::string("\x15\x03\x01\x00\x02\x02\x28", 7), "x"};
  for (const std::string& bytes : garbage) {
    const auto send = [&](kj::AsyncIoStream& stream) {
      return stream.write(bytes.data(), bytes.size()).then([&stream] { stream.shutdownWrite(); });
    };
    for (PeerSecurity* security : {sealed.get(), plain.get()}) {
      for (const Answer& answer : {AcceptOf(*security, send), ConnectTo(*security, send)}) {
        ASSERT_FALSE(answer.ok()) << bytes;
        EXPECT_NE(answer.error().text().find("127.0.0.1:"), std::string::npos);
      }
    }
  }
}

// A rank names the rendezvous, the service dials it: what answers there is not for the rank to
// read.
TEST_F(TlsStand, TellsNothingOfWhatAStrangerSays) {
  const auto sealed = Make(Node("a"));
  const auto plain = Make(Plain("b"));
  const auto banner = [](kj::AsyncIoStream& stream) {
    return stream.write("SECRET-2.0 x\r\n", 14);
  };
  for (PeerSecurity* security : {sealed.get(), plain.get()}) {
    for (const Answer& answer : {AcceptOf(*security, banner), ConnectTo(*security, banner)}) {
      ASSERT_FALSE(answer.ok());
      EXPECT_EQ(answer.error().code(), Code::kCorrupt);
      const std::string& text = answer.error().text();
      EXPECT_VARYING_TEXT(text);
      EXPECT_EQ(text.find("SECRET"), std::string::npos) << text;
      EXPECT_EQ(text.find("53 45 43"), std::string::npos) << text;
    }
  }
}

// A local user may have named the address: what the certificate there says is for the log alone.
TEST_F(TlsStand, TellsNothingOfTheNamesInAStrangersCertificate) {
  MakeAuthority("other");
  const auto a = Make(Node("a"));
  const PeerSecurityOptions files = Node("secret-host", "other");
  auto context = Foreign(&files, "other");
  for (std::size_t tried = 1; tried <= 20; ++tried) {
    const Answer answer = ConnectTo(
        *a, [&](kj::AsyncIoStream& stream) { return ShakeAndStay(*context, stream, true); });
    ASSERT_FALSE(answer.ok());
    EXPECT_EQ(answer.error().code(), Code::kPermissionDenied);
    EXPECT_EQ(answer.error().text().find("secret-host"), std::string::npos)
        << answer.error().text();
    if (tried == 1) {
      ASSERT_EQ(said_.size(), 1U);
      EXPECT_NE(said_.front().find("\"secret-host\""), std::string::npos) << said_.front();
    }
  }
  EXPECT_EQ(said_.size(), 16U) << "who names an address again and again fills no log";
}

TEST_F(TlsStand, SaysSoWhenThePeerJustCloses) {
  const auto sealed = Make(Node("a"));
  const auto plain = Make(Plain("b"));
  const auto close = [](kj::AsyncIoStream& stream) -> kj::Promise<void> {
    stream.shutdownWrite();
    return kj::READY_NOW;
  };
  for (PeerSecurity* security : {sealed.get(), plain.get()}) {
    ExpectRefused(AcceptOf(*security, close), Code::kUnavailable, {"127.0.0.1:"});
    ExpectRefused(ConnectTo(*security, close), Code::kUnavailable, {"node-b:7733"});
  }
}

TEST_F(TlsStand, LeavesNoDescriptorOpenAfterRefusals) {
  const auto sealed = Make(Node("a"));
  const auto plain = Make(Plain("b"));
  Handshake(*sealed, *plain);
  const std::size_t before = OpenDescriptors();
  for (int i = 0; i < 100; ++i) {
    Handshake(*sealed, *plain);
    Handshake(*sealed, *sealed);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace headrace::service
