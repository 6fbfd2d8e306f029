#include "service/config/config_address.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_text.h"

namespace headrace::service {
namespace {

std::string Written(std::string_view text) {
  const Result<HostPort> address = ParseHostPort(text);
  return address ? address->Text() : "refused";
}

TEST(ConfigAddress, TakesNamesAndBothKindsOfAddressesAndFillsThePortIn) {
  EXPECT_EQ(Written("node-b"), "node-b:7733");
  EXPECT_EQ(Written("node_b.cluster.local:9"), "node_b.cluster.local:9");
  EXPECT_EQ(Written("10.0.0.1:65535"), "10.0.0.1:65535");
  EXPECT_EQ(Written("[fe80::1]"), "[fe80::1]:7733");
  EXPECT_EQ(Written("[::1]:80"), "[::1]:80");
}

TEST(ConfigAddress, RefusesWhatIsNoAddress) {
  for (const char* text : {"", ":", ":80", "a:", "a:x", "a:0", "a:65536", "a:-1", "a:1:2", "a b",
                           "*", "-a", "[fe80::1", "[fe80::1]x", "[node]", "::1", "a/b", "a:80 "}) {
    EXPECT_EQ(Written(text), "refused") << text;
  }
  EXPECT_EQ(Written(std::string(254, 'a')), "refused");
  EXPECT_NE(ParseHostPort("fe80::1").error().text().find("put [ ]"), std::string::npos);
  EXPECT_NE(ParseHostPort("a:70000").error().text().find("1 to 65535"), std::string::npos);
}

TEST(ConfigAddress, TakesNoPortForAHost) {
  EXPECT_EQ(Written("9564"), "refused");
  EXPECT_EQ(Written("9564:80"), "refused");
  EXPECT_EQ(ParseListenAddress("9564").error().code(), Code::kInvalidArgument);
  EXPECT_NE(ParseListenAddress("9564").error().text().find("*:9564"), std::string::npos);
  EXPECT_EQ(Written("9564.example.org"), "9564.example.org:7733");
}

TEST(ConfigAddress, ListensEverywhereAndOnAnyPortWhenAskedTo) {
  EXPECT_EQ(ParseListenAddress("*")->Text(), "*:7733");
  EXPECT_EQ(ParseListenAddress("127.0.0.1:0")->Text(), "127.0.0.1:0");
  EXPECT_FALSE(ParseListenAddress("").ok());
}

TEST(ConfigAddress, TellsLoopbackFromWhatOthersReach) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.8.7", "::1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host :
       {"10.0.0.1", "0.0.0.0", "127.example.org", "node", "::", "fe80::1", "*"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
  EXPECT_TRUE(IsLiteral("10.0.0.1"));
  EXPECT_TRUE(IsLiteral("fe80::1"));
  EXPECT_FALSE(IsLiteral("node"));
}

TEST(ConfigAddress, NamesNodesAsJobsAreNamed) {
  EXPECT_TRUE(CheckNodeName("node-b.rack_2").ok());
  EXPECT_TRUE(CheckNodeName(std::string(63, 'n')).ok());
  EXPECT_FALSE(CheckNodeName(std::string(64, 'n')).ok());
  for (const char* name : {"", "a b", "a\n", "a=b", "a,b", "a/b", "é"}) {
    EXPECT_FALSE(CheckNodeName(name).ok()) << name;
  }
}

TEST(ConfigAddress, ReadsAListOfPeers) {
  const Result<std::vector<ConfiguredPeer>> peers = ParsePeers("a=10.0.0.1,b=node-b:9");
  ASSERT_TRUE(peers.ok()) << peers.error().text();
  const std::vector<ConfiguredPeer> expected = {{.name = "a", .address = {"10.0.0.1", 7733}},
                                                {.name = "b", .address = {"node-b", 9}}};
  EXPECT_EQ(*peers, expected);
  EXPECT_TRUE(ParsePeers("")->empty());
}

TEST(ConfigAddress, RefusesPeersThatAreNoneOrTwice) {
  for (const char* text : {",", "a", "a=", "=b", "a=b,", ",a=b", "a=b,,c=d", "a=b,a=c", "a=b,c=b",
                           "a=b:7733,c=b", "a b=c", "a=*"}) {
    EXPECT_FALSE(ParsePeers(text).ok()) << text;
  }
  std::string many = "n=h";
  for (std::size_t i = 1; i <= kPeersMax; ++i) {
    many += ",n" + std::to_string(i) + "=h" + std::to_string(i);
  }
  EXPECT_TEXT(ParsePeers(many).error().text(), "65", "64");
}

TEST(ConfigAddress, ReadsAListOfRails) {
  EXPECT_EQ(*ParseRails("eth0,mlx5_0:1"), (std::vector<std::string>{"eth0", "mlx5_0:1"}));
  EXPECT_TRUE(ParseRails("")->empty());
  for (const char* text : {",", "eth0,", "eth0,eth0", "eth 0", "a/b", "a,b,c,d,e,f,g,h,i"}) {
    EXPECT_FALSE(ParseRails(text).ok()) << text;
  }
}

}  // namespace
}  // namespace headrace::service
