// What the service is told about other nodes, and what of it goes together.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "service/config/config_keys.h"
#include "service/config/invocation.h"

namespace headrace::service {
namespace {

class ConfigNetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "headrace-config-XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    for (const char* name : {"authority.crt", "node.crt", "node.key"}) {
      std::ofstream(directory_ + "/" + name) << name;
      ASSERT_EQ(::chmod((directory_ + "/" + name).c_str(), 0600), 0);
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  using Settings = std::map<std::string, std::string>;

  Settings Tls() const {
    return {{"HEADRACE_NODE_ADDRESS", "10.0.0.1"},
            {"HEADRACE_TLS_AUTHORITY", directory_ + "/authority.crt"},
            {"HEADRACE_TLS_CERTIFICATE", directory_ + "/node.crt"},
            {"HEADRACE_TLS_KEY", directory_ + "/node.key"}};
  }
  static Result<Invocation> Read(const Settings& settings) {
    const std::vector<const char*> arguments = {"headraced"};
    return ReadInvocation(arguments, [&settings](const std::string& name) {
      const auto found = settings.find(name);
      return found == settings.end() ? std::nullopt : std::optional(found->second);
    });
  }
  static void ExpectRefused(const Settings& settings, std::initializer_list<std::string> parts) {
    const Result<Invocation> answer = Read(settings);
    ASSERT_FALSE(answer.ok());
    for (const std::string& part : parts) {
      EXPECT_NE(answer.error().text().find(part), std::string::npos) << answer.error().text();
    }
  }

  std::string directory_;
};

TEST_F(ConfigNetworkTest, TakesEverythingThatOneNodeOfManyNeeds) {
  Settings settings = Tls();
  settings.insert({{"HEADRACE_NODE_NAME", "a"},
                   {"HEADRACE_DETECTION_MS", "200"},
                   {"HEADRACE_PEERS", "a=10.0.0.1,b=10.0.0.2:9"},
                   {"HEADRACE_RENDEZVOUS", "node-a"},
                   {"HEADRACE_ARCHITECTURE", "parameter-server"},
                   {"HEADRACE_POLICY", "us-byte"},
                   {"HEADRACE_BLOCK_BYTES", "65536"},
                   {"HEADRACE_RAILS", "eth0,eth1"},
                   {"HEADRACE_NETWORK_TRANSPORTS", "tcp,self"},
                   {"HEADRACE_NETWORK_CREDIT_BYTES", "1048576"},
                   {"HEADRACE_NETWORK_ALGORITHM", "ring"}});
  const Result<Invocation> answer = Read(settings);
  ASSERT_TRUE(answer.ok()) << answer.error().text();
  const Config& config = answer->config;
  EXPECT_EQ(config.node_name, "a");
  EXPECT_EQ(config.node_address, "10.0.0.1:7733");
  EXPECT_EQ(config.detection_ms, 200U);
  EXPECT_EQ(config.peers, "a=10.0.0.1,b=10.0.0.2:9");
  EXPECT_EQ(config.tls_key, directory_ + "/node.key");
  EXPECT_EQ(config.rendezvous, "node-a:7733");
  EXPECT_EQ(config.architecture, Architecture::kParameterServer);
  EXPECT_EQ(config.policy, plan::Policy::kUsByte);
  EXPECT_EQ(config.block_bytes, 65536U);
  EXPECT_EQ(config.rails, "eth0,eth1");
  EXPECT_EQ(config.network_transports, "tcp,self");
  EXPECT_EQ(config.network_credit_bytes, 1048576U);
  EXPECT_EQ(config.network_algorithm, NetworkAlgorithm::kRing);
  EXPECT_EQ(config.sources.at("rails"), "env HEADRACE_RAILS");
}

TEST_F(ConfigNetworkTest, NamesTheNodeAfterItsHostWhenNobodyDoes) {
  EXPECT_FALSE(Read({})->config.node_name.empty());
  EXPECT_EQ(Read({{"HEADRACE_NODE_NAME", ""}})->config.node_name, Read({})->config.node_name);
}

TEST_F(ConfigNetworkTest, LetsTheJobsOfAStaticListMeetAtItsFirstPeer) {
  const Settings settings = {{"HEADRACE_NODE_ADDRESS", "127.0.0.1"},
                             {"HEADRACE_PEERS", "a=node-a,b=node-b"}};
  EXPECT_EQ(Read(settings)->config.rendezvous, "node-a:7733");
  Settings own = settings;
  own["HEADRACE_RENDEZVOUS"] = "node-b";
  EXPECT_EQ(Read(own)->config.rendezvous, "node-b:7733");
  Settings server = settings;
  server["HEADRACE_ROLE"] = "server";
  ExpectRefused(server, {"rendezvous is empty"});
}

TEST_F(ConfigNetworkTest, RefusesValuesThatAreWrongByThemselves) {
  ExpectRefused({{"HEADRACE_NODE_NAME", "a b"}}, {"HEADRACE_NODE_NAME", "node_name", "0x20"});
  ExpectRefused({{"HEADRACE_NODE_ADDRESS", "10.0.0.1:x"}}, {"node_address", "\"x\""});
  ExpectRefused({{"HEADRACE_RENDEZVOUS", "*"}}, {"rendezvous", "host:port"});
  ExpectRefused({{"HEADRACE_PEERS", "a"}}, {"peers", "name=host:port"});
  ExpectRefused({{"HEADRACE_DETECTION_MS", "199"}}, {"detection_ms is 199, outside of 200 to"});
  ExpectRefused({{"HEADRACE_TLS_KEY", "node.key"}}, {"tls_key", "absolute path"});
  ExpectRefused({{"HEADRACE_ROLE", "leader"}}, {"role", "node, server"});
  ExpectRefused({{"HEADRACE_ARCHITECTURE", "ring"}}, {"all-reduce, parameter-server"});
  ExpectRefused({{"HEADRACE_NETWORK_ALGORITHM", "tree"}}, {"direct-scatter, ring", "\"tree\""});
  ExpectRefused({{"HEADRACE_RAILS", "eth0,eth0"}}, {"rails", "eth0", "twice"});
  ExpectRefused({{"HEADRACE_NETWORK_TRANSPORTS", "tcp, self"}}, {"network_transports", "blanks"});
  ExpectRefused({{"HEADRACE_BLOCK_BYTES", "4095"}}, {"block_bytes is 4095, outside of 4096 to"});
}

TEST_F(ConfigNetworkTest, TakesTheThreeTlsFilesTogetherOnly) {
  EXPECT_TRUE(Read(Tls()).ok());
  for (const char* missing :
       {"HEADRACE_TLS_AUTHORITY", "HEADRACE_TLS_CERTIFICATE", "HEADRACE_TLS_KEY"}) {
    Settings settings = Tls();
    settings.erase(missing);
    ExpectRefused(settings, {"not set", "belong together", "headracectl certs"});
  }
  Settings settings = Tls();
  settings.erase("HEADRACE_TLS_KEY");
  ExpectRefused(settings, {"tls_key not set"});
}

TEST_F(ConfigNetworkTest, NamesATlsFileThatCannotBeUsed) {
  Settings settings = Tls();
  settings["HEADRACE_TLS_AUTHORITY"] = directory_ + "/none";
  ExpectRefused(settings, {"open tls_authority " + directory_ + "/none: No such file"});
  settings["HEADRACE_TLS_AUTHORITY"] = directory_;
  ExpectRefused(settings, {"tls_authority", "is not a file"});
}

TEST_F(ConfigNetworkTest, RefusesAKeyThatOthersMayRead) {
  const std::string key = directory_ + "/node.key";
  for (const unsigned mode : {0604U, 0644U, 0620U, 0602U}) {
    ASSERT_EQ(::chmod(key.c_str(), mode), 0);
    ExpectRefused(Tls(), {"tls_key " + key, "has mode 0", "chmod 600 " + key});
  }
  for (const unsigned mode : {0600U, 0400U, 0440U}) {
    ASSERT_EQ(::chmod(key.c_str(), mode), 0);
    EXPECT_TRUE(Read(Tls()).ok()) << mode;
  }
}

TEST_F(ConfigNetworkTest, RefusesPlainTextBesideTls) {
  Settings settings = Tls();
  settings["HEADRACE_PLAIN_TEXT"] = "true";
  ExpectRefused(settings, {"plain_text", "tls_certificate", "unset one"});
}

TEST_F(ConfigNetworkTest, WantsTlsOrAWordForPlainTextWhereOtherHostsListen) {
  for (const char* address : {"10.0.0.1", "*:7733", "0.0.0.0", "[::]:7733"}) {
    ExpectRefused({{"HEADRACE_NODE_ADDRESS", address}}, {"node_address", "plain_text", "certs"});
    EXPECT_TRUE(Read({{"HEADRACE_NODE_ADDRESS", address}, {"HEADRACE_PLAIN_TEXT", "true"}}).ok());
  }
  EXPECT_TRUE(Read({{"HEADRACE_NODE_ADDRESS", "127.0.0.1"}}).ok());
  EXPECT_TRUE(Read({{"HEADRACE_NODE_ADDRESS", "[::1]:0"}}).ok());
}

TEST_F(ConfigNetworkTest, RefusesAServerThatOffersItselfNowhere) {
  ExpectRefused({{"HEADRACE_ROLE", "server"}, {"HEADRACE_NODE_ADDRESS", "127.0.0.1"}},
                {"role is server", "rendezvous is empty"});
  EXPECT_TRUE(Read({{"HEADRACE_ROLE", "server"},
                    {"HEADRACE_NODE_ADDRESS", "127.0.0.1"},
                    {"HEADRACE_RENDEZVOUS", "127.0.0.1:7000"}})
                  .ok());
}

TEST_F(ConfigNetworkTest, RefusesWhatSpeaksOfOtherNodesWhereThereAreNone) {
  const Settings settings = {{"HEADRACE_ROLE", "server"},
                             {"HEADRACE_PEERS", "a=b"},
                             {"HEADRACE_PLAIN_TEXT", "true"},
                             {"HEADRACE_RAILS", "eth0"},
                             {"HEADRACE_NETWORK_TRANSPORTS", "tcp"},
                             {"HEADRACE_GPU_NETWORK", "nccl"}};
  for (const auto& [name, value] : settings) {
    ExpectRefused({{name, value}}, {"node_address is empty", "set node_address"});
  }
  Settings tls = Tls();
  tls.erase("HEADRACE_NODE_ADDRESS");
  ExpectRefused(tls, {"tls_certificate speaks of other nodes"});
}

TEST_F(ConfigNetworkTest, RefusesNcclBetweenNodesWhereNoGpuCanBe) {
  Settings settings = {{"HEADRACE_NODE_ADDRESS", "127.0.0.1"}, {"HEADRACE_GPU_NETWORK", "nccl"}};
  EXPECT_EQ(Read(settings)->config.gpu_network, GpuNetwork::kNccl);
  settings["HEADRACE_GPU"] = "off";
  ExpectRefused(settings, {"gpu_network is nccl", "gpu is off", "gpu_network to staged"});
  settings.erase("HEADRACE_GPU");
  settings.insert({{"HEADRACE_ROLE", "server"}, {"HEADRACE_RENDEZVOUS", "127.0.0.1:7000"}});
  ExpectRefused(settings, {"gpu_network is nccl", "role is server", "staged"});
  ExpectRefused({{"HEADRACE_GPU_NETWORK", "rdma"}}, {"gpu_network", "staged, nccl", "\"rdma\""});
}

TEST_F(ConfigNetworkTest, ReadsItsOwnOutputBack) {
  Settings settings = Tls();
  settings.insert({{"HEADRACE_PEERS", "a=[::1]:1,b=c"}, {"HEADRACE_RAILS", "eth0"}});
  const Result<Invocation> first = Read(settings);
  ASSERT_TRUE(first.ok()) << first.error().text();
  const std::string path = directory_ + "/headrace.toml";
  std::ofstream(path) << PrintConfig(first->config);
  const std::vector<const char*> arguments = {"headraced", "--config", path.c_str()};
  const Result<Invocation> second =
      ReadInvocation(arguments, [](const std::string&) { return std::nullopt; });
  ASSERT_TRUE(second.ok()) << second.error().text();
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_EQ(PrintConfigValue(key, first->config), PrintConfigValue(key, second->config));
  }
}

}  // namespace
}  // namespace headrace::service
