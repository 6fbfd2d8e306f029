// `headracectl certs` as a person runs it, judged by the openssl program where there is one.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "client/cli/ctl/certs_show.h"
#include "tests/golden/ctl/run_program.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

class CertsCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / "headrace-certs-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Ran MakeAuthority() const { return RunProgram("certs authority --out " + folder_ + "/ca"); }
  Ran MakeNode(const std::string& more = "") const {
    return RunProgram("certs node a --authority " + folder_ + "/ca --out " + folder_ + "/a " +
                      more);
  }

  std::string folder_;
};

TEST_F(CertsCommandTest, SaysWhatGoesIntoTheConfiguration) {
  const Ran authority = MakeAuthority();
  EXPECT_EQ(authority.exit_code, 0) << authority.output;
  const Ran node = MakeNode();
  EXPECT_EQ(node.exit_code, 0) << node.output;
  EXPECT_EQ(node.output,
            "# for the configuration of the service on a\n"
            "node_name = \"a\"\n"
            "tls_authority = \"" +
                folder_ +
                "/a/authority.crt\"\n"
                "tls_certificate = \"" +
                folder_ +
                "/a/a.crt\"\n"
                "tls_key = \"" +
                folder_ + "/a/a.key\"\n");
}

TEST_F(CertsCommandTest, MakesWhatTheOpensslProgramVerifies) {
  if (RunCommand("openssl version").exit_code != 0) GTEST_SKIP() << "there is no openssl program";
  ASSERT_EQ(MakeAuthority().exit_code, 0);
  ASSERT_EQ(MakeNode().exit_code, 0);
  const std::string verify = "openssl verify -x509_strict -verify_hostname headrace -CAfile ";
  for (const char* purpose : {"sslserver", "sslclient"}) {
    const Ran ran = RunCommand(verify + folder_ + "/ca/authority.crt -purpose " + purpose + " " +
                               folder_ + "/a/a.crt");
    EXPECT_EQ(ran.exit_code, 0) << ran.output;
  }
  ASSERT_EQ(RunProgram("certs authority --out " + folder_ + "/other").exit_code, 0);
  EXPECT_NE(RunCommand(verify + folder_ + "/other/authority.crt " + folder_ + "/a/a.crt").exit_code,
            0);
}

TEST_F(CertsCommandTest, ShowsWhatStandsInACertificate) {
  ASSERT_EQ(MakeAuthority().exit_code, 0);
  ASSERT_EQ(MakeNode("--host 10.0.0.1 --host node-a --days 30").exit_code, 0);
  const Ran table = RunProgram("certs show " + folder_ + "/a/a.crt");
  EXPECT_EQ(table.exit_code, 0);
  const std::regex lines(
      "file       [^\n]*/a/a.crt\n"
      "node       a\n"
      "signed by  Headrace authority [0-9a-f]{6}\n"
      "names      headrace, a, 10.0.0.1, node-a\n"
      "from       20[0-9 :-]*Z\n"
      "until      20[0-9 :-]*Z\n"
      "state      valid\n"
      "sha256     [0-9a-f]{64}\n");
  EXPECT_TRUE(std::regex_match(table.output, lines)) << table.output;
  const Ran json = RunProgram("certs show --json " + folder_ + "/ca/authority.crt");
  const auto parsed = nlohmann::json::parse(json.output);
  EXPECT_EQ(parsed["authority"], true);
  EXPECT_EQ(parsed["name"], parsed["signed_by"]);
  EXPECT_EQ(parsed["state"], "valid");
}

TEST_F(CertsCommandTest, TellsACertificateThatIsNotValidNow) {
  CertificateText certificate;
  certificate.name = "a\x1b[2J";
  certificate.from_unix_s = 100;
  certificate.until_unix_s = 200;
  const auto table = [&](std::int64_t now) { return CertificateTable(certificate, now); };
  for (const std::int64_t now : {99, 100, 200}) EXPECT_TEXT(table(now));
  EXPECT_EQ(table(100).find('\x1b'), std::string::npos) << "a certificate does not move the cursor";
  EXPECT_EQ(CertificateJson(certificate, 200)["state"], "expired");
}

TEST_F(CertsCommandTest, ExitsWithOneWhenItCannotAndWithTwoWhenItIsUsedWrongly) {
  ASSERT_EQ(MakeAuthority().exit_code, 0);
  const Ran again = MakeAuthority();
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.output.find("--force"), std::string::npos) << again.output;
  EXPECT_EQ(RunProgram("certs authority --force --out " + folder_ + "/ca").exit_code, 0);
  const Ran none = RunProgram("certs show " + folder_ + "/none");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_VARYING_TEXT(none.output, folder_ + "/none");
  EXPECT_EQ(RunProgram("certs show " + folder_ + "/ca/authority.key").exit_code, 1);
  EXPECT_EQ(RunProgram("certs show " + folder_).exit_code, 1);
  for (const char* arguments : {"certs", "certs nonsense", "certs authority", "certs node",
                                "certs node a", "certs show", "certs authority --out x --days y"}) {
    EXPECT_EQ(RunProgram(arguments).exit_code, 2) << arguments;
  }
  EXPECT_EQ(RunProgram("certs node --help").exit_code, 0);
}

}  // namespace
}  // namespace headrace::ctl
