// The certificate's files change while the service runs: new connections use the new ones, bad ones
// change nothing, and the end of a certificate is announced in time.
#include <filesystem>
#include <fstream>

#include "tests/support/expect_text.h"
#include "tests/unit/service/peers/tls/tls_stand.h"

namespace headrace::service {
namespace {

namespace fs = std::filesystem;

class TlsRenewalTest : public TlsStand {
 protected:
  TlsRenewalTest() { by_hand_ = true; }

  // A service's own: what it says of its certificate is kept.
  std::unique_ptr<PeerSecurity> MakeWatched(const PeerSecurityOptions& options) {
    auto made = PeerSecurity::Create(
        options, timer_, [](const std::string&) {},
        {.log = [this](const std::string& text) { logged_.push_back(text); },
         .alert = [this](const std::string& text) { alerts_.push_back(text); },
         .show = [this](const CertificateState& state) { state_ = state; }},
        [this] { return now_unix_s_; });
    HR_CHECK(made.ok(), made.error().text());
    return std::move(made).value();
  }
  void Pass(kj::Duration time) {
    timer_.advanceTo(timer_.now() + time);
    now_unix_s_ += time / kj::SECONDS;
    io_.waitScope.poll();
  }
  // Until files have been checked for changes.
  void AwaitCheck() { Pass(kCertificateCheckInterval); }

  static void Copy(const PeerSecurityOptions& from, const PeerSecurityOptions& to) {
    for (const auto& [source, target] : {std::pair{from.authority_path, to.authority_path},
                                         std::pair{from.certificate_path, to.certificate_path},
                                         std::pair{from.key_path, to.key_path}}) {
      if (source != target) fs::copy_file(source, target, fs::copy_options::overwrite_existing);
    }
  }
  // Which authority a peer believes in who gets on with `security`.
  bool GetsOnWith(PeerSecurity& security, const std::string& authority) {
    const auto peer = Make(Node("peer", authority));
    auto ends = Connection();
    auto accepted = security.Accept(kj::mv(ends.first)).eagerlyEvaluate(nullptr);
    auto connected = peer->Connect(kj::mv(ends.second), "a").eagerlyEvaluate(nullptr);
    const bool first = accepted.wait(io_.waitScope).ok();
    return connected.wait(io_.waitScope).ok() && first;
  }

  std::int64_t now_unix_s_ = std::time(nullptr);
  std::vector<std::string> logged_;
  std::vector<std::string> alerts_;
  CertificateState state_;
};

TEST_F(TlsRenewalTest, NewConnectionsUseFilesThatHaveChangedAndOpenOnesStay) {
  MakeAuthority("new");
  const PeerSecurityOptions own = Node("a");
  const auto a = MakeWatched(own);
  auto watching = a->WatchFiles().eagerlyEvaluate(nullptr);
  const auto peer = Make(Node("b"));
  auto [accepted, connected] = Handshake(*a, *peer);
  ASSERT_TRUE(accepted.ok() && connected.ok());
  EXPECT_FALSE(GetsOnWith(*a, "new"));

  Copy(Node("a", "new"), own);
  AwaitCheck();
  EXPECT_TRUE(GetsOnWith(*a, "new"));
  EXPECT_FALSE(GetsOnWith(*a, "ca"));
  EXPECT_EQ(logged_.size(), 1U);
  EXPECT_TRUE(alerts_.empty());
  char heard = 0;
  auto written = connected->stream->write("!", 1).eagerlyEvaluate(nullptr);
  accepted->stream->read(&heard, 1).wait(io_.waitScope);
  EXPECT_EQ(heard, '!');
}

TEST_F(TlsRenewalTest, ReadsNothingWhileNothingChanges) {
  const auto a = MakeWatched(Node("a"));
  const std::int64_t loaded_unix_s = state_.loaded_unix_s;
  auto watching = a->WatchFiles().eagerlyEvaluate(nullptr);
  for (int i = 0; i < 10; ++i) AwaitCheck();
  EXPECT_EQ(state_.loaded_unix_s, loaded_unix_s);
  EXPECT_TRUE(logged_.empty());
}

// As kubelet replaces what a secret's volume holds, and cert-manager's driver what is in its own:
// tls.crt -> ..data/tls.crt, ..data -> a folder with a date, and ..data is renamed over.
TEST_F(TlsRenewalTest, FollowsAFolderThatIsExchangedAsAWhole) {
  MakeAuthority("new");
  const std::string mount = folder_ + "/mount";
  const auto publish = [&](const PeerSecurityOptions& files, const std::string& version) {
    fs::create_directories(mount + "/" + version);
    Copy(files, {.node_name = "a",
                 .authority_path = mount + "/" + version + "/ca.crt",
                 .certificate_path = mount + "/" + version + "/tls.crt",
                 .key_path = mount + "/" + version + "/tls.key"});
    fs::create_directory_symlink(version, mount + "/..data_tmp");
    fs::rename(mount + "/..data_tmp", mount + "/..data");
  };
  publish(Node("a"), "..2026_01_01");
  for (const char* name : {"ca.crt", "tls.crt", "tls.key"}) {
    fs::create_symlink(std::string("..data/") + name, mount + "/" + name);
  }
  const auto a = MakeWatched({.node_name = "a",
                              .authority_path = mount + "/ca.crt",
                              .certificate_path = mount + "/tls.crt",
                              .key_path = mount + "/tls.key"});
  auto watching = a->WatchFiles().eagerlyEvaluate(nullptr);
  EXPECT_TRUE(GetsOnWith(*a, "ca"));
  publish(Node("a", "new"), "..2026_01_02");
  fs::remove_all(mount + "/..2026_01_01");
  AwaitCheck();
  EXPECT_TRUE(GetsOnWith(*a, "new"));
  EXPECT_TRUE(alerts_.empty());
}

TEST_F(TlsRenewalTest, KeepsTheFormerFilesWhileNewOnesAreBadAndSaysWhy) {
  MakeAuthority("new");
  const PeerSecurityOptions own = Node("a");
  const PeerSecurityOptions next = Node("a", "new");
  const auto a = MakeWatched(own);
  auto watching = a->WatchFiles().eagerlyEvaluate(nullptr);
  const std::string whole = *ctl::ReadText(next.certificate_path);

  // Half written: the key is not there yet, and the certificate is not whole.
  ASSERT_TRUE(ctl::WriteText(own.certificate_path, whole.substr(0, 200), 0644, true).ok());
  AwaitCheck();
  EXPECT_TRUE(alerts_.empty()) << "whoever writes may be in the middle of it";
  EXPECT_TRUE(GetsOnWith(*a, "ca"));
  AwaitCheck();
  ASSERT_EQ(alerts_.size(), 1U);
  EXPECT_VARYING_TEXT(alerts_[0]);
  EXPECT_NE(state_.refused.find(own.certificate_path), std::string::npos) << state_.refused;
  AwaitCheck();
  EXPECT_EQ(alerts_.size(), 1U);

  // Whole, of another key.
  ASSERT_TRUE(ctl::WriteText(own.certificate_path, whole, 0644, true).ok());
  AwaitCheck();
  AwaitCheck();
  ASSERT_EQ(alerts_.size(), 2U);
  EXPECT_VARYING_TEXT(alerts_[1]);
  EXPECT_TRUE(GetsOnWith(*a, "ca"));

  fs::remove(own.key_path);
  AwaitCheck();
  EXPECT_TRUE(GetsOnWith(*a, "ca"));
  Copy(next, own);
  AwaitCheck();
  EXPECT_TRUE(GetsOnWith(*a, "new"));
  EXPECT_EQ(state_.refused, "");
  EXPECT_EQ(alerts_.size(), 2U);
}

TEST_F(TlsRenewalTest, RepeatsDailyThatFilesAreNotUsed) {
  const PeerSecurityOptions own = Node("a");
  const auto a = MakeWatched(own);
  auto watching = a->WatchFiles().eagerlyEvaluate(nullptr);
  fs::remove(own.key_path);
  AwaitCheck();
  AwaitCheck();
  EXPECT_EQ(alerts_.size(), 1U);
  Pass(23 * kj::HOURS);
  EXPECT_EQ(alerts_.size(), 1U);
  Pass(1 * kj::HOURS);
  EXPECT_EQ(alerts_.size(), 2U);
}

TEST_F(TlsRenewalTest, AnnouncesTheEndDailyFromAMonthAhead) {
  MakeAuthority("long", std::time(nullptr), 3650);
  const auto made = ctl::MakeNodeCertificate({.name = "a",
                                              .authority = folder_ + "/long",
                                              .out = folder_ + "/a",
                                              .hosts = {},
                                              .days = 365,
                                              .now_unix_s = std::time(nullptr)});
  ASSERT_TRUE(made.ok());
  const PeerSecurityOptions own{.node_name = "a",
                                .authority_path = made->authority,
                                .certificate_path = made->certificate,
                                .key_path = made->key};
  const auto a = MakeWatched(own);
  EXPECT_EQ(state_.warn_from_unix_s, state_.until_unix_s - 30 * kDay);
  auto watching = a->WatchFiles().eagerlyEvaluate(nullptr);
  now_unix_s_ = state_.until_unix_s - 30 * kDay - 3600;
  AwaitCheck();
  EXPECT_TRUE(alerts_.empty());
  Pass(2 * kj::HOURS);
  ASSERT_EQ(alerts_.size(), 1U);
  EXPECT_VARYING_TEXT(alerts_[0], "node a");
  Pass(23 * kj::HOURS);
  EXPECT_EQ(alerts_.size(), 1U);
  Pass(1 * kj::HOURS);
  EXPECT_EQ(alerts_.size(), 2U);
  now_unix_s_ = state_.until_unix_s;
  AwaitCheck();
  ASSERT_EQ(alerts_.size(), 3U);
  EXPECT_VARYING_TEXT(alerts_[2]);
}

TEST_F(TlsRenewalTest, AnnouncesTheEndOfTheAuthorityToo) {
  MakeAuthority("short", std::time(nullptr), 20);
  const auto a = MakeWatched(Node("a", "short"));
  now_unix_s_ = state_.authority_until_unix_s - 3 * kDay - 60;
  auto watching = a->WatchFiles().eagerlyEvaluate(nullptr);
  ASSERT_EQ(alerts_.size(), 1U);
  EXPECT_VARYING_TEXT(alerts_[0]);
}

}  // namespace
}  // namespace headrace::service
