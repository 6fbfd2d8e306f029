// Who may come, what they may say, and what becomes of those who are slow.
#include <netinet/in.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/http/visit.h"

namespace headrace::service {
namespace {

using Http = HttpTest;

TEST_F(Http, AnswersSeveralTimesOnOneConnection) {
  auto client = Connect();
  for (int i = 0; i < 3; ++i) {
    const std::string text = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
    client->write(text.data(), text.size()).wait(io.waitScope);
    EXPECT_EQ(Read(*client).status(), 200);
  }
  EXPECT_EQ(listener->connections_count(), 1U);
}

TEST_F(Http, GivesHeadersAloneForHead) {
  const Visit visit = Request("HEAD /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(visit.status(), 200);
  EXPECT_GT(std::stoul(visit.header("Content-Length")), 1000U);
  EXPECT_TRUE(visit.body.empty());
}

TEST_F(Http, RefusesEveryMethodThatCouldChangeSomething) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "NONSENSE"}) {
    const Visit visit = Request(std::string(method) +
                                " /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
                                "Content-Length: 0\r\n\r\n");
    EXPECT_EQ(visit.status(), 405) << method;
    EXPECT_EQ(visit.header("Allow"), "GET, HEAD") << method;
  }
}

TEST_F(Http, RefusesABody) {
  EXPECT_EQ(Request("GET / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\nbody").status(), 413);
  EXPECT_EQ(Request("GET / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                .status(),
            413);
}

TEST_F(Http, RefusesLongHeaders) {
  const std::string filler(kHttpHeadersMax, 'x');
  EXPECT_EQ(
      Request("GET / HTTP/1.1\r\nHost: here\r\nX: " + filler + "\r\nConnection: close\r\n\r\n")
          .status(),
      431);
  EXPECT_EQ(
      Request("GET /" + filler + " HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").status(),
      431);
}

TEST_F(Http, IsNotMadeToKeepHeadersWithoutEnd) {
  // More than is ever buffered: the connection ends, with an answer or without.
  const Visit visit = Request("GET / HTTP/1.1\r\nX: " + std::string(1 << 20, 'x'));
  EXPECT_NE(visit.status(), 200);
  EXPECT_TRUE(Until([this] { return listener->connections_count() == 0; }));
}

TEST_F(Http, RefusesWhatIsNotHttp) {
  EXPECT_EQ(Request("\x16\x03\x01 hello\r\n\r\n").status(), 405);
  EXPECT_EQ(Request("GET / HTTP/1.1\r\nno header\r\n\r\n").status(), 400);
  EXPECT_EQ(Get("/metrics").status(), 200);
}

TEST_F(Http, ForgetsAConnectionThatTheClientCloses) {
  { auto client = Connect(); }
  EXPECT_EQ(Get("/metrics").status(), 200);
  EXPECT_TRUE(Until([this] { return listener->connections_count() == 0; }));
}

TEST_F(Http, IsNotEndedByConnectionsThatAreResetBeforeItAcceptsThem) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(listener->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  for (int i = 0; i < 20; ++i) {
    const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  }
  EXPECT_EQ(Get("/metrics").status(), 200);
  EXPECT_TRUE(Until([this] { return listener->connections_count() == 0; }));
}

TEST_F(Http, ClosesTheOneThatHasBeenIdleLongestWhenFull) {
  std::vector<kj::Own<kj::AsyncIoStream>> clients;
  for (std::size_t i = 0; i < kHttpConnectionsMax; ++i) clients.push_back(Connect());
  ASSERT_TRUE(Until([this] { return listener->connections_count() == kHttpConnectionsMax; }));
  EXPECT_EQ(Get("/metrics").status(), 200);
  EXPECT_LE(listener->connections_count(), kHttpConnectionsMax);
  char letter = 0;
  EXPECT_EQ(clients[0]->tryRead(&letter, 1, 1).wait(io.waitScope), 0U) << "the first is closed";
}

TEST_F(Http, TurnsNewcomersAwayWhileAllAreBeingAnswered) {
  const TimeNs begun = MonotonicNow();
  answer.reset();
  std::vector<kj::Own<kj::AsyncIoStream>> clients;
  const std::string text = "GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n";
  for (std::size_t i = 0; i < kHttpConnectionsMax; ++i) {
    clients.push_back(Connect());
    clients.back()->write(text.data(), text.size()).wait(io.waitScope);
  }
  ASSERT_TRUE(Until([this] { return probes.size() == kHttpConnectionsMax; }));
  const int turned_away = Get("/metrics").status();
  if (MonotonicNow() - begun >= kHttpAnswerKept) GTEST_SKIP() << "this machine is too slow";
  EXPECT_EQ(turned_away, 0);
  for (auto& probe : probes) probe->fulfill(AllWell());
  for (auto& client : clients) EXPECT_EQ(Read(*client).status(), 200);
  EXPECT_EQ(Get("/metrics").status(), 200);
}

TEST_F(Http, MakesRoomForNewcomersWhereAnswersAreNotRead) {
  answer.reset();
  std::vector<kj::Own<kj::AsyncIoStream>> clients;
  const std::string text = "GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n";
  for (std::size_t i = 0; i < kHttpConnectionsMax; ++i) {
    clients.push_back(Connect());
    clients.back()->write(text.data(), text.size()).wait(io.waitScope);
  }
  ASSERT_TRUE(Until([this] { return probes.size() == kHttpConnectionsMax; }));
  io.provider->getTimer().afterDelay(kHttpAnswerKept * kj::NANOSECONDS).wait(io.waitScope);
  EXPECT_EQ(Get("/metrics").status(), 200);
}

TEST_F(Http, IsNotHeldUpByOneWhoDoesNotRead) {
  auto slow = Connect();
  // Small buffers, many answers: the connection's writes stand still.
  KJ_IF_MAYBE (fd, slow->getFd()) {
    const int size = 1024;
    ::setsockopt(*fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  }
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
  auto writing = slow->write(many.data(), many.size()).eagerlyEvaluate([](kj::Exception&&) {});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Get("/metrics").status(), 200);
}

TEST_F(Http, NamesAPortThatIsTakenAndWhatToDo) {
  const std::string address = "127.0.0.1:" + std::to_string(listener->port());
  auto second = HttpListener::Create(
      address, *board, [this] { return kj::cp(*answer); }, io);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::kBusy);
  EXPECT_VARYING_TEXT(second.error().text(), "http_address", address);
}

TEST_F(Http, NamesAnAddressThatIsNotOfThisHost) {
  auto elsewhere = HttpListener::Create(
      "192.0.2.1:0", *board, [this] { return kj::cp(*answer); }, io);
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_NE(elsewhere.error().text().find("192.0.2.1:0"), std::string::npos);
  EXPECT_NE(elsewhere.error().text().find("set http_address"), std::string::npos);
}

TEST_F(Http, ClosesEverythingWithItself) {
  auto client = Connect();
  ASSERT_TRUE(Until([this] { return listener->connections_count() == 1; }));
  listener = nullptr;
  char letter = 0;
  EXPECT_EQ(client->tryRead(&letter, 1, 1).wait(io.waitScope), 0U);
}

}  // namespace
}  // namespace headrace::service
