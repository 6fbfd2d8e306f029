// Certificates as OpenSSL judges them: it verifies what another call of it has made.
#include "client/cli/ctl/certs.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client/cli/ctl/certs_files.h"
#include "client/cli/ctl/certs_show.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

constexpr std::int64_t kDay = 24 * 3600;

using UniqueStore = UniqueHandle<OpensslTraits<X509_STORE, X509_STORE_free>>;
using UniqueJudge = UniqueHandle<OpensslTraits<X509_STORE_CTX, X509_STORE_CTX_free>>;

class CertsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / "headrace-certs-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string In(const std::string& name) const { return folder_ + "/" + name; }

  Result<CertificatePaths> Authority(const std::string& name, int days = kAuthorityDays) const {
    return MakeAuthority({.out = In(name), .days = days, .now_unix_s = now_});
  }
  Result<CertificatePaths> Node(const std::string& name, int days = kNodeDays) const {
    return MakeNodeCertificate({.name = name,
                                .authority = In("ca"),
                                .out = In("nodes"),
                                .hosts = {},
                                .days = days,
                                .now_unix_s = now_});
  }
  static std::string Refusal(const Result<CertificatePaths>& made) {
    return made.ok() ? "made" : made.error().text();
  }
  static unsigned Mode(const std::string& path) {
    struct stat state {};
    return ::stat(path.c_str(), &state) == 0 ? state.st_mode & 07777U : 0;
  }

  // OpenSSL's verdict at `when`, X509_V_OK when all is well.
  static int Verdict(const std::string& path, const std::string& authority_path, int purpose,
                     std::int64_t when) {
    const Result<UniqueCertificate> certificate = ReadCertificate(path);
    const Result<UniqueCertificate> authority = ReadCertificate(authority_path);
    HR_CHECK(certificate.ok() && authority.ok(), path);
    const UniqueStore store(X509_STORE_new());
    HR_CHECK(X509_STORE_add_cert(store.get(), authority->get()) == 1);
    const UniqueJudge judge(X509_STORE_CTX_new());
    HR_CHECK(X509_STORE_CTX_init(judge.get(), store.get(), certificate->get(), nullptr) == 1);
    X509_STORE_CTX_set_purpose(judge.get(), purpose);
    X509_STORE_CTX_set_time(judge.get(), 0, when);
    X509_VERIFY_PARAM_set_flags(X509_STORE_CTX_get0_param(judge.get()), X509_V_FLAG_X509_STRICT);
    const int verified = X509_verify_cert(judge.get());
    const int verdict = X509_STORE_CTX_get_error(judge.get());
    EXPECT_EQ(verified == 1, verdict == X509_V_OK);
    return verdict;
  }

  std::string folder_;
  std::int64_t now_ = std::time(nullptr);
};

TEST_F(CertsTest, ANodesCertificateIsBelievedAtBothEndsOfAConnection) {
  const Result<CertificatePaths> authority = Authority("ca");
  ASSERT_TRUE(authority.ok()) << authority.error().text();
  const Result<CertificatePaths> node = Node("a");
  ASSERT_TRUE(node.ok()) << node.error().text();
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    EXPECT_EQ(Verdict(node->certificate, authority->certificate, purpose, now_), X509_V_OK);
  }
  const Result<UniqueCertificate> certificate = ReadCertificate(node->certificate);
  const Result<UniqueKey> key = ReadKey(node->key);
  ASSERT_TRUE(certificate.ok() && key.ok());
  EXPECT_EQ(X509_verify(certificate->get(),
                        X509_get0_pubkey(ReadCertificate(authority->certificate)->get())),
            1);
  EXPECT_EQ(X509_check_private_key(certificate->get(), key->get()), 1);
  EXPECT_EQ(X509_check_host(certificate->get(), "headrace", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(certificate->get(), "a", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(certificate->get(), "b", 0, 0, nullptr), 0);
}

TEST_F(CertsTest, CarriesTheHostsItWasAskedFor) {
  ASSERT_TRUE(Authority("ca").ok());
  const Result<CertificatePaths> node = MakeNodeCertificate(
      {.name = "a",
       .authority = In("ca"),
       .out = In("nodes"),
       .hosts = {"a", "node-a.example.org", "10.0.0.1", "fe80::1", "x,DNS:evil"},
       .now_unix_s = now_});
  ASSERT_TRUE(node.ok()) << node.error().text();
  const Result<CertificateText> text = ReadCertificateText(node->certificate);
  ASSERT_TRUE(text.ok());
  const std::vector<std::string> names = {"headrace", "a",       "node-a.example.org",
                                          "10.0.0.1", "fe80::1", "x,DNS:evil"};
  EXPECT_EQ(text->names, names);
  const Result<UniqueCertificate> certificate = ReadCertificate(node->certificate);
  EXPECT_EQ(X509_check_ip_asc(certificate->get(), "10.0.0.1", 0), 1);
  EXPECT_EQ(X509_check_host(certificate->get(), "evil", 0, 0, nullptr), 0);
}

TEST_F(CertsTest, IsNotBelievedUnderAnotherAuthority) {
  ASSERT_TRUE(Authority("ca").ok());
  const Result<CertificatePaths> other = Authority("other");
  const Result<CertificatePaths> node = Node("a");
  ASSERT_TRUE(other.ok() && node.ok());
  EXPECT_NE(Verdict(node->certificate, other->certificate, X509_PURPOSE_SSL_CLIENT, now_),
            X509_V_OK);
}

TEST_F(CertsTest, IsValidForTheDaysItWasAskedForAndALittleBefore) {
  const Result<CertificatePaths> authority = Authority("ca");
  const Result<CertificatePaths> node = Node("a", 2);
  ASSERT_TRUE(authority.ok() && node.ok());
  const auto verdict = [&](std::int64_t when) {
    return Verdict(node->certificate, authority->certificate, X509_PURPOSE_SSL_CLIENT, when);
  };
  EXPECT_EQ(verdict(now_ - 1800), X509_V_OK);
  EXPECT_EQ(verdict(now_ - 2 * 3600), X509_V_ERR_CERT_NOT_YET_VALID);
  EXPECT_EQ(verdict(now_ + 2 * kDay - 1), X509_V_OK);
  EXPECT_EQ(verdict(now_ + 2 * kDay + 1), X509_V_ERR_CERT_HAS_EXPIRED);
}

TEST_F(CertsTest, EndsWithItsAuthorityAtTheLatest) {
  ASSERT_TRUE(Authority("ca", 1).ok());
  const Result<CertificatePaths> node = Node("a", 30);
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(ReadCertificateText(node->certificate)->until_unix_s, now_ + kDay);
}

TEST_F(CertsTest, ANodeCannotVouchForOthers) {
  ASSERT_TRUE(Authority("ca").ok());
  const Result<CertificatePaths> node = Node("a");
  ASSERT_TRUE(node.ok());
  std::filesystem::create_directory(In("sly"));
  std::filesystem::copy(node->certificate, In("sly/authority.crt"));
  std::filesystem::copy(node->key, In("sly/authority.key"));
  const std::string refusal = Refusal(MakeNodeCertificate(
      {.name = "b", .authority = In("sly"), .out = In("out"), .hosts = {}, .now_unix_s = now_}));
  EXPECT_VARYING_TEXT(refusal, "sly/authority.crt");
  EXPECT_FALSE(std::filesystem::exists(In("out")));
}

TEST_F(CertsTest, KeepsKeysFromOthers) {
  const Result<CertificatePaths> authority = Authority("ca");
  const Result<CertificatePaths> node = Node("a");
  ASSERT_TRUE(authority.ok() && node.ok());
  EXPECT_EQ(Mode(authority->key), 0600U);
  EXPECT_EQ(Mode(node->key), 0600U);
  EXPECT_EQ(Mode(node->certificate), 0644U);
  EXPECT_EQ(Mode(In("ca")), 0700U);
  ASSERT_EQ(::chmod(authority->key.c_str(), 0644), 0);
  const std::string refusal = Refusal(Node("b"));
  EXPECT_VARYING_TEXT(refusal, "0644", "chmod 600");
}

TEST_F(CertsTest, OverwritesNothingUnlessItIsForced) {
  const Result<CertificatePaths> authority = Authority("ca");
  const Result<CertificatePaths> node = Node("a");
  ASSERT_TRUE(authority.ok() && node.ok());
  const std::string key = *ReadText(node->key);
  const std::string authority_key = *ReadText(authority->key);
  EXPECT_VARYING_TEXT(Refusal(Node("a")), "a.crt");
  EXPECT_VARYING_TEXT(Refusal(Authority("ca")), "--force");
  EXPECT_EQ(*ReadText(node->key), key);
  EXPECT_EQ(*ReadText(authority->key), authority_key);
  std::filesystem::remove(node->certificate);
  EXPECT_VARYING_TEXT(Refusal(Node("a")), "a.key");
  EXPECT_FALSE(std::filesystem::exists(node->certificate));
  ASSERT_TRUE(MakeNodeCertificate({.name = "a",
                                   .authority = In("ca"),
                                   .out = In("nodes"),
                                   .hosts = {},
                                   .force = true,
                                   .now_unix_s = now_})
                  .ok());
  EXPECT_NE(*ReadText(node->key), key);
  EXPECT_EQ(Mode(node->key), 0600U);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(In("nodes"))) {
    ++files;
  }
  EXPECT_EQ(files, 3U) << "no temporary file stays";
}

TEST_F(CertsTest, RefusesWhatCannotBecomeACertificate) {
  EXPECT_VARYING_TEXT(Refusal(Node("a")), "headracectl certs authority");
  ASSERT_TRUE(Authority("ca").ok());
  for (const char* name : {"", "a b", "a/b", "..", ".", "a,b", "authority", "ä"}) {
    EXPECT_NE(Refusal(Node(name)), "made") << name;
  }
  EXPECT_NE(Refusal(Node(std::string(64, 'n'))), "made");
  EXPECT_EQ(Refusal(Node(std::string(63, 'n'))), "made");
  EXPECT_VARYING_TEXT(Refusal(Node("a", 0)), "0 days");
  EXPECT_VARYING_TEXT(Refusal(Authority("ca2", kDaysMax + 1)));
  EXPECT_VARYING_TEXT(Refusal(Authority("no/such")));
  now_ += kAuthorityDays * kDay + 1;
  EXPECT_VARYING_TEXT(Refusal(Node("late")));
}

TEST_F(CertsTest, RefusesAnAuthorityWhoseFilesDoNotFit) {
  ASSERT_TRUE(Authority("ca").ok());
  ASSERT_TRUE(Authority("other").ok());
  std::filesystem::copy_file(In("other/authority.key"), In("ca/authority.key"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_VARYING_TEXT(Refusal(Node("a")));
  std::ofstream(In("ca/authority.key")) << "garbage";
  EXPECT_VARYING_TEXT(Refusal(Node("a")));
  std::ofstream(In("ca/authority.crt")) << std::string((1U << 20U) + 1, 'x');
  EXPECT_VARYING_TEXT(Refusal(Node("a")), "1048576");
}

TEST_F(CertsTest, DoesNotMixTwoAuthoritiesInOneFolder) {
  ASSERT_TRUE(Authority("ca").ok());
  ASSERT_TRUE(Node("a").ok());
  ASSERT_TRUE(Node("b").ok()) << "the same authority's certificate may be there already";
  std::filesystem::remove_all(In("ca"));
  ASSERT_TRUE(Authority("ca").ok());
  EXPECT_VARYING_TEXT(Refusal(Node("c")), "authority.crt");
  EXPECT_FALSE(std::filesystem::exists(In("nodes/c.key")));
}

}  // namespace
}  // namespace headrace::ctl
