#include "service/config/invocation.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "service/config/config_keys.h"
#include "tests/support/expect_text.h"

namespace headrace::service {
namespace {

class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "headrace-config-XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/headrace.toml";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void WriteFile(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  Result<Invocation> Read(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "headraced");
    return ReadInvocation(arguments, [this](const std::string& name) {
      const auto found = environment_.find(name);
      return found == environment_.end() ? std::nullopt : std::optional(found->second);
    });
  }
  Result<Invocation> ReadFile(const std::string& text) {
    WriteFile(text);
    return Read({"--config", path_.c_str()});
  }
  void ExpectRefused(const Result<Invocation>& answer, std::initializer_list<std::string> parts) {
    ASSERT_FALSE(answer.ok());
    EXPECT_EQ(answer.error().code(), Code::kInvalidArgument);
    for (const std::string& part : parts) {
      EXPECT_NE(answer.error().text().find(part), std::string::npos) << answer.error().text();
    }
  }

  std::string directory_;
  std::string path_;
  std::map<std::string, std::string> environment_;
};

TEST_F(ConfigTest, PutsTheBoardBesideASocketThatIsNamedAlone) {
  EXPECT_EQ(Read({"--socket", "/tmp/x/hr.sock"})->config.board_path, "/tmp/x/board");
  EXPECT_EQ(Read({"--socket", "/tmp/x/hr.sock", "--board", "/b"})->config.board_path, "/b");
  EXPECT_EQ(Read({})->config.board_path, "/run/headrace/board");
  environment_["HEADRACE_SOCKET"] = "/tmp/y/s";
  EXPECT_EQ(Read({})->config.board_path, "/tmp/y/board");
}

TEST_F(ConfigTest, ShowsWhatValuesMayBe) {
  const std::string help = Read({"--help"})->text;
  EXPECT_NE(help.find("trace, debug, info"), std::string::npos);
  EXPECT_NE(help.find("0 to 1024"), std::string::npos);
  EXPECT_EQ(help.find("18446744073709551615"), std::string::npos);
}

TEST_F(ConfigTest, PrintsTheDefaultsWithTheirSources) {
  const Result<Invocation> answer = Read({"--print-config"});
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->action, Invocation::Action::kPrint);
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
  const std::vector<std::string> settings = {"socket = \"/run/headrace/headrace.sock\"",
                                             "socket_mode = 0o666",
                                             "board = \"/run/headrace/board\"",
                                             "board_mode = 0o644",
                                             "lane_threads = 0",
                                             "credit_bytes = 8388608",
                                             "spin_us = 0",
                                             "operation_timeout_ms = 60000",
                                             "drain_timeout_ms = 5000",
                                             "dedicated_lanes = false",
                                             "log_level = \"info\"",
                                             "log_queue_bytes = 1048576",
                                             "late_ms = 5000",
                                             "interleave = false",
                                             "http_address = \"\"",
                                             "gpu = \"auto\"",
                                             "cuda_library = \"\"",
                                             "gpu_lane = \"nvlink\"",
                                             "gpu_multicast = \"off\"",
                                             "nccl_library = \"\"",
                                             "gpu_network = \"staged\"",
                                             "gpu_codecs = \"on\"",
                                             "gpu_ctas = 16",
                                             "sessions_per_uid = \"auto\"",
                                             "memory_per_uid = \"auto\"",
                                             "operations_per_uid = 0",
                                             "node_name = \"" + std::string(host.data()) + "\"",
                                             "node_address = \"\"",
                                             "forming_ms = 60000",
                                             "detection_ms = 3000",
                                             "peers = \"\"",
                                             "tls_authority = \"\"",
                                             "tls_certificate = \"\"",
                                             "tls_key = \"\"",
                                             "plain_text = false",
                                             "role = \"node\"",
                                             "rendezvous = \"\"",
                                             "architecture = \"all-reduce\"",
                                             "policy = \"auto\"",
                                             "block_bytes = 4194304",
                                             "verify = 0",
                                             "rails = \"\"",
                                             "network_transports = \"\"",
                                             "network_credit_bytes = 33554432",
                                             "network_algorithm = \"auto\""};
  std::size_t width = 0;
  for (const std::string& setting : settings) width = std::max(width, setting.size());
  std::string expected;
  for (const std::string& setting : settings) {
    expected += setting + std::string(width - setting.size(), ' ') + "  # default\n";
  }
  EXPECT_EQ(answer->text, expected);
}

TEST_F(ConfigTest, AQuotaIsANumberOrLeftToTheService) {
  for (const char* text : {"auto", "0", "4096"}) {
    const Result<Invocation> answer = Read({"--memory-per-uid", text});
    ASSERT_TRUE(answer.ok()) << answer.error().text();
    const std::uint64_t expected =
        std::string(text) == "auto" ? kQuotaAuto : static_cast<std::uint64_t>(std::atoi(text));
    EXPECT_EQ(answer->config.memory_per_uid, expected);
  }
  ExpectRefused(Read({"--sessions-per-uid", "many"}),
                {"flag --sessions-per-uid", "an integer or \"auto\""});
  ExpectRefused(Read({"--sessions-per-uid", "1000001"}), {"outside of 0 to 1000000"});
}

TEST_F(ConfigTest, TakesTheNearestSourceOfEachValue) {
  WriteFile("# site\nspin_us = 1\nlane_threads = 1\ncredit_bytes = 4096\n");
  environment_ = {{"HEADRACE_LANE_THREADS", "2"}, {"HEADRACE_CREDIT_BYTES", "8192"}};
  const Result<Invocation> answer =
      Read({"--config", path_.c_str(), "--credit-bytes", "16384", "--dedicated-lanes"});
  ASSERT_TRUE(answer.ok()) << answer.error().text();
  EXPECT_EQ(answer->action, Invocation::Action::kRun);
  const Config& config = answer->config;
  EXPECT_EQ(config.spin_us, 1U);
  EXPECT_EQ(config.lane_threads, 2U);
  EXPECT_EQ(config.credit_bytes, 16384U);
  EXPECT_TRUE(config.dedicated_lanes);
  const std::map<std::string, std::string, std::less<>> sources = {
      {"spin_us", "file " + path_ + ":2"},
      {"lane_threads", "env HEADRACE_LANE_THREADS"},
      {"credit_bytes", "flag --credit-bytes"},
      {"dedicated_lanes", "flag --dedicated-lanes"}};
  EXPECT_EQ(config.sources, sources);
}

TEST_F(ConfigTest, ReadsItsOwnOutputBack) {
  const Result<Invocation> first =
      Read({"--socket", "/tmp/with \"quotes\" and \\", "--socket-mode", "0600", "--spin-us", "50",
            "--dedicated-lanes", "--log-level", "debug", "--board-mode", "640"});
  ASSERT_TRUE(first.ok()) << first.error().text();
  const Result<Invocation> second = ReadFile(PrintConfig(first->config));
  ASSERT_TRUE(second.ok()) << second.error().text();
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_EQ(PrintConfigValue(key, first->config), PrintConfigValue(key, second->config));
    EXPECT_TRUE(second->config.sources.contains(key.name)) << key.name;
  }
}

TEST_F(ConfigTest, RefusesAnUnknownKeyWithItsPlaceAndTheNearest) {
  ExpectRefused(ReadFile("\nspin_ms = 5\n"), {path_ + ":2:1", "spin_ms", "mean \"spin_us\"?"});
  ExpectRefused(ReadFile("sockets = \"/x\"\n"), {path_ + ":1:1", "unknown key \"sockets\""});
  ExpectRefused(ReadFile("entirely_different = 5\n"), {"known are socket, socket_mode"});
}

TEST_F(ConfigTest, RefusesTablesBecauseItHasNone) {
  ExpectRefused(ReadFile("[lanes]\nthreads = 2\n"), {path_ + ":1", "unknown table \"lanes\""});
  ExpectRefused(ReadFile("[spin_us]\nvalue = 2\n"), {"spin_us is a single value, not a table"});
}

TEST_F(ConfigTest, RefusesWrongTypes) {
  ExpectRefused(ReadFile("spin_us = \"fast\"\n"),
                {path_ + ":1:1", "spin_us", "integer", "\"fast\""});
  ExpectRefused(ReadFile("spin_us = 1.5\n"), {"spin_us", "floating-point"});
  ExpectRefused(ReadFile("spin_us = [1]\n"), {"spin_us", "array"});
  ExpectRefused(ReadFile("socket = 3\n"), {"socket is a path, given is 3"});
  ExpectRefused(ReadFile("dedicated_lanes = 1\n"), {"true or false", "given is 1"});
  ExpectRefused(ReadFile("log_level = true\n"), {"log_level", "given is true"});
  ExpectRefused(ReadFile("log_level = \"loud\"\n"), {"trace, debug, info", "\"loud\""});
}

TEST_F(ConfigTest, RefusesWhatIsOutOfRange) {
  ExpectRefused(ReadFile("\n\nspin_us = 1000001\n"),
                {path_ + ":3:1", "spin_us is 1000001, outside of 0 to 1000000"});
  ExpectRefused(ReadFile("spin_us = -1\n"), {"spin_us is -1"});
  ExpectRefused(ReadFile("credit_bytes = 4095\n"), {"outside of 4096 to"});
  ExpectRefused(ReadFile("operation_timeout_ms = 0\n"), {"outside of 1 to"});
  ExpectRefused(ReadFile("socket_mode = 666\n"), {"socket_mode is 666", "octal, like 0o666"});
  ExpectRefused(ReadFile("socket = \"here.sock\"\n"), {"absolute path"});
  ExpectRefused(ReadFile("socket = \"/" + std::string(107, 'a') + "\"\n"),
                {"108 bytes, at most 107"});
  ExpectRefused(ReadFile("board = \"/run/headrace/headrace.sock\"\n"), {"are both"});
}

// What tests/gpu passes on is what the loader was asked for, with or without a folder.
TEST_F(ConfigTest, TakesALibraryByPathOrByName) {
  for (const std::string name : {"libcuda.so.1", "/opt/cuda/libcuda.so.1", ""}) {
    const Result<Invocation> read = Read({"--cuda-library", name.c_str()});
    ASSERT_TRUE(read) << read.error().text();
    EXPECT_EQ(read->config.cuda_library, name);
  }
  const Result<Invocation> nccl = Read({"--nccl-library", "libnccl.so.2"});
  ASSERT_TRUE(nccl) << nccl.error().text();
  EXPECT_EQ(nccl->config.nccl_library, "libnccl.so.2");
  ExpectRefused(Read({"--cuda-library", "lib/libcuda.so.1"}),
                {"cuda_library", "lib/libcuda.so.1", "absolute path", "without any /"});
  ExpectRefused(ReadFile("nccl_library = \"./libnccl.so.2\"\n"), {"nccl_library", "absolute path"});
}

TEST_F(ConfigTest, RefusesAFileThatIsNotToml) {
  ExpectRefused(ReadFile("spin_us = 1\nspin_us = 2\n"), {path_ + ":2:"});
  ExpectRefused(ReadFile("spin_us\n"), {path_ + ":"});
  const Result<Invocation> absent = Read({"--config", "/nonexistent/headrace.toml"});
  ASSERT_FALSE(absent.ok());
  EXPECT_TEXT(absent.error().text());
  ExpectRefused(ReadFile(std::string((1U << 20U) + 1, '#')), {"more than 1048576 bytes"});
}

TEST_F(ConfigTest, NamesTheVariableOrFlagThatIsWrong) {
  environment_ = {{"HEADRACE_SPIN_US", "12us"}};
  ExpectRefused(Read({}), {"environment HEADRACE_SPIN_US", "integer", "\"12us\""});
  environment_ = {{"HEADRACE_DEDICATED_LANES", "yes"}};
  ExpectRefused(Read({}), {"HEADRACE_DEDICATED_LANES", "true or false"});
  environment_ = {};
  ExpectRefused(Read({"--spin-us", "-5"}), {"flag --spin-us", "-5"});
  ExpectRefused(Read({"--socket-mode", "888"}), {"flag --socket-mode", "octal"});
  ExpectRefused(Read({"--board", ""}), {"--board"});
}

TEST_F(ConfigTest, RefusesUnknownFlagsWithTheNearest) {
  ExpectRefused(Read({"--sockt=/x"}), {"\"--sockt\"", "did you mean --socket?"});
  ExpectRefused(Read({"start"}), {"unknown argument \"start\""});
  EXPECT_FALSE(Read({"--spin-us"}).ok());
}

TEST_F(ConfigTest, ChecksWithoutStarting) {
  const Result<Invocation> answer = Read({"--check-config"});
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->action, Invocation::Action::kCheck);
  environment_ = {{"HEADRACE_SPIN_US", "x"}};
  EXPECT_FALSE(Read({"--check-config"}).ok());
}

TEST_F(ConfigTest, HelpsWithEveryKey) {
  const Result<Invocation> answer = Read({"--help"});
  ASSERT_TRUE(answer.ok());
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_NE(answer->text.find(FlagName(key)), std::string::npos) << key.name;
    EXPECT_NE(answer->text.find(key.help), std::string::npos) << key.name;
  }
  EXPECT_EQ(Read({"--version"})->text, "headraced " + std::string(Version()) + "\n");
}

}  // namespace
}  // namespace headrace::service
