#include "service/peers/socket_owner.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <sstream>
#include <string>

#include "ipc/base/fd.h"

namespace headrace::service {
namespace {

SocketEnd End(const char* address, std::uint16_t port) {
  sockaddr_storage storage{};
  if (sockaddr_in ip{}; ::inet_pton(AF_INET, address, &ip.sin_addr) == 1) {
    ip.sin_family = AF_INET;
    ip.sin_port = htons(port);
    std::memcpy(&storage, &ip, sizeof ip);
  } else {
    sockaddr_in6 ip6{};
    EXPECT_EQ(::inet_pton(AF_INET6, address, &ip6.sin6_addr), 1) << address;
    ip6.sin6_family = AF_INET6;
    ip6.sin6_port = htons(port);
    std::memcpy(&storage, &ip6, sizeof ip6);
  }
  return SocketEndOf(storage).value();
}

// As a machine of little-endian byte order prints them.
class SocketOwner : public testing::Test {
 protected:
  void SetUp() override {
    if (std::endian::native != std::endian::little) GTEST_SKIP() << "big-endian";
  }
  std::optional<std::uint32_t> Find(const SocketEnd& own, std::optional<SocketEnd> other = {}) {
    std::istringstream table(table_);
    return FindSocketOwner(table, own, other);
  }

  std::string table_ =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n"
      "   0: 0100007F:1E35 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 "
      "1517304 1 00000000ee3f3da4 100 0 0 10 0\n"
      "   1: 0100007F:1E35 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 "
      "1517310 1 00000000b15f87e0 20 4 30 10 -1\n"
      "   2: 0100007F:9C40 0100007F:1E35 01 00000000:00000000 00:00000000 00000000 65534        0 "
      "1517311 1 00000000b15f87e1 20 4 30 10 -1\n"
      "  13: 0100007F:9C41 0100007F:1E35 04 00000000:00000000 01:00000014 00000000     0        0 "
      "0 2 00000000b15f87e2 20 4 30 10 -1\n"
      "  14: 0000000000000000FFFF00000100007F:9C42 0000000000000000FFFF00000100007F:1E35 01 "
      "00000000:00000000 00:00000000 00000000  1001        0 1517312 1 00000000b15f87e3\n"
      "  15: 00000000000000000000000001000000:9C42 00000000000000000000000001000000:1E35 01 "
      "00000000:00000000 00:00000000 00000000  1002        0 1517313 1 00000000b15f87e4\n";
};

TEST_F(SocketOwner, IsFoundByBothEndsOfAConnection) {
  const SocketEnd service = End("127.0.0.1", 7733);
  EXPECT_EQ(Find(End("127.0.0.1", 40000), service), 65534U);
  EXPECT_EQ(Find(service, End("127.0.0.1", 40000)), 1000U);
  EXPECT_EQ(Find(End("127.0.0.1", 40000), End("127.0.0.1", 7734)), std::nullopt);
  EXPECT_EQ(Find(End("127.0.0.2", 40000), service), std::nullopt);
}

TEST_F(SocketOwner, IsFoundWhereASocketOfIpv6SpeaksWithOneOfIpv4) {
  EXPECT_EQ(Find(End("127.0.0.1", 40002), End("127.0.0.1", 7733)), 1001U);
  EXPECT_EQ(Find(End("::1", 40002), End("::1", 7733)), 1002U);
}

TEST_F(SocketOwner, ThatListensIsFoundByItsOwnEnd) {
  EXPECT_EQ(Find(End("127.0.0.1", 7733)), 1000U);
  EXPECT_EQ(Find(End("127.0.0.1", 40000)), std::nullopt);
}

// The kernel says that root has it, whoever closed it.
TEST_F(SocketOwner, IsNobodyOnceTheSocketIsClosed) {
  EXPECT_EQ(Find(End("127.0.0.1", 40001), End("127.0.0.1", 7733)), std::nullopt);
}

TEST_F(SocketOwner, IsNotReadFromLinesThatAreCutShort) {
  std::istringstream table(table_);
  std::string line;
  std::getline(table, line);
  EXPECT_FALSE(ParseSocketRow(line).has_value());
  std::getline(table, line);
  ASSERT_TRUE(ParseSocketRow(line).has_value());
  const std::size_t inode = line.find("1517304");
  for (std::size_t size = 0; size < inode; ++size) {
    EXPECT_FALSE(ParseSocketRow(line.substr(0, size)).has_value()) << line.substr(0, size);
  }
  for (const char* const wrong :
       {"0100007G:1E35", "0100007F:1E355", "0100007:1E35", ":", "0100007F"}) {
    std::string changed = line;
    changed.replace(changed.find("0100007F:1E35"), 13, wrong);
    EXPECT_FALSE(ParseSocketRow(changed).has_value()) << wrong;
  }
}

// A connection on loopback whose other end nobody has accepted yet, with a socket that listens at
// one address or, for IPv6 and IPv4, at all.
class OwnSockets : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    sockaddr_storage bound{};
    if (GetParam()) {
      auto& any = reinterpret_cast<sockaddr_in6&>(bound);
      any.sin6_family = AF_INET6;
      any.sin6_addr = in6addr_any;
    } else {
      auto& one = reinterpret_cast<sockaddr_in&>(bound);
      one.sin_family = AF_INET;
      one.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    listens_ = UniqueFd(::socket(bound.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto size = static_cast<socklen_t>(sizeof bound);
    if (GetParam() && (!listens_ || ::bind(listens_.get(), AsAny(bound), size) != 0)) {
      GTEST_SKIP() << "no IPv6 here";
    }
    if (!GetParam()) {
      ASSERT_EQ(::bind(listens_.get(), AsAny(bound), size), 0);
    }
    ASSERT_EQ(::listen(listens_.get(), 1), 0);
    sockaddr_storage at = NameOf(listens_.get(), ::getsockname);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(SocketEndOf(at)->port);
    connects_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(connects_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    here_ = *SocketEndOf(NameOf(connects_.get(), ::getsockname));
    there_ = *SocketEndOf(NameOf(connects_.get(), ::getpeername));
  }
  static sockaddr* AsAny(sockaddr_storage& address) {
    return reinterpret_cast<sockaddr*>(&address);
  }
  static sockaddr_storage NameOf(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    EXPECT_EQ(get(fd, AsAny(name), &size), 0);
    return name;
  }

  UniqueFd listens_;
  UniqueFd connects_;
  SocketEnd here_;
  SocketEnd there_;
};

TEST_P(OwnSockets, TheListenersUserIsTheOneToWhomAConnectionGoes) {
  EXPECT_EQ(OwnerOfConnected(there_, here_), std::nullopt) << "nobody has accepted it";
  EXPECT_EQ(OwnerOfListening(there_, here_), ::geteuid());
  const UniqueFd accepted(::accept4(listens_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  EXPECT_EQ(OwnerOfConnected(there_, here_), ::geteuid());
  EXPECT_EQ(OwnerOfConnected(here_, there_), ::geteuid());
  EXPECT_EQ(OwnerOfListening(there_, here_), ::geteuid()) << "it was accepted meanwhile";
}

// Whoever listens there now need not be the one who had it.
TEST_P(OwnSockets, AConnectionThatWasAcceptedAndClosedIsNobodys) {
  { const UniqueFd accepted(::accept4(listens_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  EXPECT_EQ(OwnerOfConnected(there_, here_), std::nullopt);
  EXPECT_EQ(OwnerOfListening(there_, here_), std::nullopt);
}

TEST_P(OwnSockets, AConnectionWhoseListenerHasClosedIsNobodys) {
  listens_ = UniqueFd();
  EXPECT_EQ(OwnerOfConnected(there_, here_), std::nullopt);
  EXPECT_EQ(OwnerOfListening(there_, here_), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(At, OwnSockets, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "EveryAddress" : "OneAddress");
});

}  // namespace
}  // namespace headrace::service
