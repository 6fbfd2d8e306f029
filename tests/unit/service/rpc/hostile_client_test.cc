// Clients that mean harm cost their own connection, and nobody else's.
#include <capnp/rpc.capnp.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/service/rpc/caller.h"
#include "tests/unit/service/rpc/stand.h"

namespace headrace::support {
namespace {

class HostileClientTest : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~HostileClientTest() noexcept override {}

  // Waits until the service has closed the connection.
  static bool IsClosedByService(int fd) {
    timeval patience{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    std::array<char, 4096> bytes{};
    ssize_t size = 0;
    while ((size = ::recv(fd, bytes.data(), bytes.size(), 0)) > 0) continue;
    return size == 0 || errno == ECONNRESET;
  }
  void ExpectOthersServed() {
    Caller caller(loop_, stand_.socket_path());
    Attached attached = caller.Attach({.job = "honest"});
    EXPECT_EQ(attached.code, Code::kOk) << attached.text;
    EXPECT_EQ(caller.Leave(attached.session).code, Code::kOk);
  }

  CallerLoop loop_;
  ControlStand stand_;
};

TEST_F(HostileClientTest, SendsGarbage) {
  // As a segment table this announces 2^30 segments.
  const UniqueFd fd = ConnectTo(stand_.socket_path());
  const std::vector<char> garbage(4096, '\x3f');
  ASSERT_EQ(::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 4096);
  EXPECT_TRUE(IsClosedByService(fd.get()));
  ExpectOthersServed();
}

TEST_F(HostileClientTest, SendsRandomBytes) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 200; ++round) {
    const UniqueFd fd = ConnectTo(stand_.socket_path());
    std::array<std::uint32_t, 64> words{};
    for (std::uint32_t& word : words) {
      word = static_cast<std::uint32_t>(random() % 7 == 0 ? random() : random() % 4);
    }
    ::send(fd.get(), words.data(), sizeof words, MSG_NOSIGNAL);
  }
  ExpectOthersServed();
}

TEST_F(HostileClientTest, AnnouncesMoreThanAMessageMayHold) {
  const UniqueFd fd = ConnectTo(stand_.socket_path());
  const std::array<std::uint32_t, 2> table{0, 0x7fffffff};
  ASSERT_EQ(::send(fd.get(), table.data(), sizeof table, MSG_NOSIGNAL), 8);
  EXPECT_TRUE(IsClosedByService(fd.get()));
  ExpectOthersServed();
}

TEST_F(HostileClientTest, StopsInTheMiddleOfAMessage) {
  const UniqueFd half = ConnectTo(stand_.socket_path());
  const std::array<std::uint32_t, 3> table{0, 100, 0};
  ASSERT_EQ(::send(half.get(), table.data(), sizeof table, MSG_NOSIGNAL), 12);
  ExpectOthersServed();
  ASSERT_EQ(::shutdown(half.get(), SHUT_WR), 0);
  EXPECT_TRUE(IsClosedByService(half.get()));
  ExpectOthersServed();
}

TEST_F(HostileClientTest, SendsDescriptorsThatNobodyAskedFor) {
  const UniqueFd fd = ConnectTo(stand_.socket_path());
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::array<int, 50> passed{};
  passed.fill(null.get());
  std::array<std::uint32_t, 2> bytes{0, 0x7fffffff};
  iovec piece{.iov_base = bytes.data(), .iov_len = sizeof bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof passed)> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof passed);
  std::memcpy(CMSG_DATA(header), passed.data(), sizeof passed);
  ASSERT_EQ(::sendmsg(fd.get(), &message, MSG_NOSIGNAL), 8);
  EXPECT_TRUE(IsClosedByService(fd.get()));
  ExpectOthersServed();
}

TEST_F(HostileClientTest, LeavesItsCallsUnfinished) {
  Caller caller(loop_, stand_.socket_path());
  const Attached attached = caller.Attach({});
  ASSERT_EQ(attached.code, Code::kOk);
  // An answer that is kept is not finished.
  std::vector<capnp::Response<schema::Bootstrap::AdminResults>> kept;
  const auto flood = [this, &caller, &kept] {
    for (int i = 0; i < 100; ++i) {
      auto call = caller.bootstrap().adminRequest();
      call.getHello().setProtocolVersion(1);
      kept.push_back(loop_.Wait<capnp::Response<schema::Bootstrap::AdminResults>>(call.send()));
    }
  };
  EXPECT_ANY_THROW(flood());
  EXPECT_LT(kept.size(), 40U);
  EXPECT_TRUE(stand_.dispatch().WaitFor<service::CloseSession>(1));
  kept.clear();
  ExpectOthersServed();
}

// One call of the protocol, in the bytes of its one segment: it asks for the bootstrap and lets it
// go.
std::vector<kj::byte> AskAndFinish() {
  capnp::MallocMessageBuilder ask;
  ask.initRoot<capnp::rpc::Message>().initBootstrap().setQuestionId(0);
  capnp::MallocMessageBuilder finish;
  finish.initRoot<capnp::rpc::Message>().initFinish().setQuestionId(0);
  std::vector<kj::byte> bytes;
  for (capnp::MallocMessageBuilder* message : {&ask, &finish}) {
    const kj::Array<capnp::word> flat = capnp::messageToFlatArray(*message);
    bytes.insert(bytes.end(), flat.asBytes().begin(), flat.asBytes().end());
  }
  return bytes;
}

TEST_F(HostileClientTest, NeverReadsItsAnswers) {
  const UniqueFd fd = ConnectTo(stand_.socket_path());
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const std::vector<kj::byte> pair = AskAndFinish();
  int sent = 0;
  // More than a gigabyte of answers, were they kept.
  constexpr int kSentMax = 10'000'000;
  while (sent<kSentMax&& ::send(fd.get(), pair.data(), pair.size(), MSG_NOSIGNAL)> 0) ++sent;
  EXPECT_LT(sent, kSentMax);
  EXPECT_TRUE(errno == EPIPE || errno == ECONNRESET) << errno;
  ASSERT_TRUE(stand_.watch().WaitFor<service::Event>(1));
  stand_.watch().Visit<service::Event>(0, [](const service::Event& event) {
    EXPECT_EQ(event.code, Code::kExhausted);
    // How much is not read depends on the socket; what is allowed does not.
    const std::string allowed = std::to_string(service::kUnreadBytesMax);
    EXPECT_NE(event.text.find(allowed), std::string::npos) << event.text;
  });
  ExpectOthersServed();
}

TEST_F(HostileClientTest, TakesAllDescriptorsOfTheProcess) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer opens pipes to probe memory, and takes it for bad when it cannot";
#endif
  // Control's thread shares this process's table; the service is as short as the test makes it.
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  Caller early(loop_, stand_.socket_path());
  const Attached attached = early.Attach({.rank = 1});
  ASSERT_EQ(attached.code, Code::kOk);
  const UniqueFd waiting(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UniqueFd highest(::dup(waiting.get()));
  const rlimit none{.rlim_cur = static_cast<rlim_t>(highest.get()), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::size_t said = stand_.watch().Count<service::Event>();
  timespec before{};
  timespec after{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  Connect(waiting.get(), stand_.socket_path());
  EXPECT_TRUE(stand_.watch().WaitFor<service::Event>(said + 1));
  loop_.io.provider->getTimer().afterDelay(350 * kj::MILLISECONDS).wait(loop_.io.waitScope);
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const double cpu_s = static_cast<double>(after.tv_sec - before.tv_sec) +
                       static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  EXPECT_LT(cpu_s, 0.2) << "it waits, it does not spin";
  EXPECT_EQ(stand_.watch().Count<service::Event>(), said + 1) << "and says so once";
  ExpectOthersServed();
}

}  // namespace
}  // namespace headrace::support
