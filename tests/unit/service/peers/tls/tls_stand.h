// Two ends of a connection over loopback, and certificates of every kind for them.
#pragma once

#include <gtest/gtest.h>
#include <kj/async-io.h>
#include <kj/compat/tls.h>
#include <stdlib.h>

#include <ctime>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/ctl/certs.h"
#include "client/cli/ctl/certs_files.h"
#include "service/peers/tls.h"
#include "tests/support/expect_text.h"

namespace headrace::service {

constexpr std::int64_t kDay = 24 * 3600;

class TlsStand : public testing::Test {
 protected:
  using Answer = Result<SecuredPeer>;

  TlsStand() : io_(kj::setupAsyncIo()) {
    folder_ = std::filesystem::temp_directory_path() / "headrace-tls-XXXXXX";
    HR_CHECK(::mkdtemp(folder_.data()) != nullptr, folder_);
    MakeAuthority("ca");
  }
  ~TlsStand() noexcept override { std::filesystem::remove_all(folder_); }

  void MakeAuthority(const std::string& name, std::int64_t at = std::time(nullptr),
                     int days = 30) const {
    const auto made =
        ctl::MakeAuthority({.out = folder_ + "/" + name, .days = days, .now_unix_s = at});
    HR_CHECK(made.ok(), made.error().text());
  }
  // The files of node `name`, signed by `authority` for 30 days from `at` on.
  PeerSecurityOptions Node(const std::string& name, const std::string& authority = "ca",
                           std::int64_t at = std::time(nullptr)) const {
    const auto made = ctl::MakeNodeCertificate({.name = name,
                                                .authority = folder_ + "/" + authority,
                                                .out = folder_ + "/" + authority + "-" + name,
                                                .hosts = {},
                                                .days = 30,
                                                .force = true,
                                                .now_unix_s = at});
    HR_CHECK(made.ok(), made.error().text());
    return {.node_name = name,
            .authority_path = made->authority,
            .certificate_path = made->certificate,
            .key_path = made->key};
  }
  static PeerSecurityOptions Plain(const std::string& name, bool beyond_loopback = false) {
    PeerSecurityOptions options;
    options.node_name = name;
    options.plain_text = beyond_loopback;
    return options;
  }

  std::unique_ptr<PeerSecurity> Make(const PeerSecurityOptions& options) {
    auto made = PeerSecurity::Create(options, Timer(),
                                     [this](const std::string& text) { said_.push_back(text); });
    HR_CHECK(made.ok(), made.error().text());
    return std::move(made).value();
  }
  static std::string Refusal(const PeerSecurityOptions& options) {
    kj::TimerImpl timer(kj::origin<kj::TimePoint>());
    const auto made = PeerSecurity::Create(options, timer, [](const std::string&) {});
    return made.ok() ? "made" : made.error().text();
  }

  // Real sockets; the first end is the one that accepted.
  std::pair<kj::Own<kj::AsyncIoStream>, kj::Own<kj::AsyncIoStream>> Connection() {
    auto& network = io_.provider->getNetwork();
    auto receiver = network.parseAddress("127.0.0.1", 0).wait(io_.waitScope)->listen();
    auto address = network.parseAddress("127.0.0.1", receiver->getPort()).wait(io_.waitScope);
    auto connected = address->connect();
    auto accepted = receiver->accept().wait(io_.waitScope);
    return {kj::mv(accepted), connected.wait(io_.waitScope)};
  }

  // Both ends do what they do; both answers.
  std::pair<Answer, Answer> Handshake(PeerSecurity& accepting, PeerSecurity& connecting) {
    auto ends = Connection();
    auto accepted = accepting.Accept(kj::mv(ends.first));
    auto connected = connecting.Connect(kj::mv(ends.second), "node-b:7733");
    accepted = accepted.eagerlyEvaluate(nullptr);
    connected = connected.eagerlyEvaluate(nullptr);
    auto first = accepted.wait(io_.waitScope);
    return {kj::mv(first), connected.wait(io_.waitScope)};
  }

  // What `security` says of a peer that is no PeerSecurity; `act` is given the peer's end, and what
  // it promises is kept going.
  template <typename Act>
  Answer AcceptOf(PeerSecurity& security, Act act) {
    auto ends = Connection();
    auto answer = security.Accept(kj::mv(ends.first));
    auto acting = act(*ends.second).eagerlyEvaluate([](kj::Exception&&) {});
    return answer.wait(io_.waitScope);
  }
  template <typename Act>
  Answer ConnectTo(PeerSecurity& security, Act act) {
    auto ends = Connection();
    auto answer = security.Connect(kj::mv(ends.second), "node-b:7733");
    auto acting = act(*ends.first).eagerlyEvaluate([](kj::Exception&&) {});
    return answer.wait(io_.waitScope);
  }

  // TLS as another program would do it: with the node's files or without, believing `authority`.
  kj::Own<kj::TlsContext> Foreign(const PeerSecurityOptions* files,
                                  const std::string& authority = "ca") const {
    const kj::TlsCertificate believed(
        ctl::ReadText(folder_ + "/" + authority + "/authority.crt")->c_str());
    kj::TlsContext::Options options;
    options.useSystemTrustStore = false;
    options.verifyClients = true;
    options.trustedCertificates = kj::arrayPtr(&believed, 1);
    if (files == nullptr) return kj::heap<kj::TlsContext>(kj::mv(options));
    const kj::TlsKeypair pair{
        .privateKey = kj::TlsPrivateKey(ctl::ReadText(files->key_path)->c_str()),
        .certificate = kj::TlsCertificate(ctl::ReadText(files->certificate_path)->c_str())};
    options.defaultKeypair = pair;
    return kj::heap<kj::TlsContext>(kj::mv(options));
  }
  // Shakes hands, then reads until the other end has gone.
  static kj::Promise<void> ShakeAndStay(kj::TlsContext& context, kj::AsyncIoStream& stream,
                                        bool accepted) {
    kj::Own<kj::AsyncIoStream> borrowed(&stream, kj::NullDisposer::instance);
    auto wrapped = accepted ? context.wrapServer(kj::mv(borrowed))
                            : context.wrapClient(kj::mv(borrowed), "headrace");
    return wrapped.then([](kj::Own<kj::AsyncIoStream> encrypted) {
      auto read = encrypted->readAllBytes().ignoreResult();
      return read.attach(kj::mv(encrypted));
    });
  }

  static void ExpectRefused(const Answer& answer, Code code,
                            std::initializer_list<std::string_view> values = {}) {
    ASSERT_FALSE(answer.ok());
    const std::string& text = answer.error().text();
    EXPECT_EQ(answer.error().code(), code) << text;
    support::ExpectText(__FILE__, __LINE__, text, values, support::Varies::kYes);
  }

  kj::Timer& Timer() {
    return by_hand_ ? static_cast<kj::Timer&>(timer_) : io_.provider->getTimer();
  }

  std::string folder_;
  kj::AsyncIoContext io_;
  bool by_hand_ = false;  // time is timer_'s
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  std::vector<std::string> said_;
};

}  // namespace headrace::service
