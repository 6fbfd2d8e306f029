// Shares over real sockets: two nodes in one process, over loopback TCP. Broadcasts, since what
// they share is then the wire and no sums. The receivers' sockets hold little, as if the link were
// slower than the threads: else the kernel would take all that both have outstanding at once.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tests/unit/transport/exchange_fleet.h"
#include "transport/ucx/accepted.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kBytes = 4 << 20;
constexpr std::uint32_t kDepth = 3;
constexpr TimeNs kCrowdedPatience = 50 * kSecond;  // for crowded machines

class Pair {
 public:
  Pair() {
    for (std::size_t node = 0; node < 2; ++node) {
      auto wire = UcxWire::Open({.net_devices = "lo", .settings = {{"TCP_RCVBUF", "256K"}}});
      HR_CHECK(wire.ok(), wire.error().text());
      wires_[node] = std::move(wire).value();
      nodes_[node] = std::make_unique<Exchange>(*wires_[node], ExchangeOptions{});
      memory_[node].resize(kBytes);
    }
  }

  void Open(std::uint32_t group, const Share& share) {
    GroupOptions options{.group = group,
                         .key = KeyOf(group),
                         .members = {{"a", wires_[0]->address()}, {"b", wires_[1]->address()}}};
    for (options.self = 0; options.self < 2; ++options.self) {
      const Status opened = nodes_[options.self]->OpenGroup(options);
      HR_CHECK(opened.ok(), opened.error().text());
      nodes_[options.self]->SetShare(group, share);
    }
    for (std::size_t node = 0; node < 2; ++node) {
      for (std::uint32_t i = 0; i < kDepth; ++i) Post(group, node);
    }
  }

  // Until the root has sent so much of the group; false when that takes longer than patience.
  bool RunUntil(std::uint32_t group, std::uint64_t transfers) {
    const TimeNs deadline = MonotonicNow() + kCrowdedPatience;
    while (ended_[group] < transfers && MonotonicNow() < deadline) Work();
    return ended_[group] >= transfers;
  }
  double ended(std::uint32_t group) { return static_cast<double>(ended_[group]); }

 private:
  void Post(std::uint32_t group, std::size_t node) {
    Transfer transfer{.token = group,
                      .kind = Collective::kBroadcast,
                      .count = kBytes,
                      .group = group,
                      .position = positions_[{group, node}]++,
                      .members_count = 2};
    transfer.members[node] = memory_[node].data();
    ASSERT_EQ(nodes_[node]->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  }

  void Work() {
    bool worked = false;
    for (std::size_t node = 0; node < 2; ++node) {
      completions_.clear();
      worked = nodes_[node]->DoWork(MonotonicNow(), completions_) || worked;
      for (const Completion& completion : completions_) {
        ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
        const auto group = static_cast<std::uint32_t>(completion.token);
        if (node == 0) ++ended_[group];
        Post(group, node);
      }
    }
    if (worked || !nodes_[0]->PrepareToSleep() || !nodes_[1]->PrepareToSleep()) return;
    std::array<pollfd, 2> fds{{{.fd = nodes_[0]->event_fd(), .events = POLLIN, .revents = 0},
                               {.fd = nodes_[1]->event_fd(), .events = POLLIN, .revents = 0}}};
    poll(fds.data(), fds.size(), 100);
  }

  std::array<std::vector<std::byte>, 2> memory_;
  std::array<std::unique_ptr<UcxWire>, 2> wires_;
  std::array<std::unique_ptr<Exchange>, 2> nodes_;
  std::vector<Completion> completions_;
  std::map<std::uint32_t, std::uint64_t> ended_;
  std::map<std::pair<std::uint32_t, std::size_t>, std::uint64_t> positions_;
};

TEST(ExchangeSharesOverUcx, GiveBytesByWeight) {
  Pair pair;
  pair.Open(1, {.weight = 3});
  pair.Open(2, {.weight = 1});
  ASSERT_TRUE(pair.RunUntil(2, 10));
  const double one = pair.ended(1);
  const double other = pair.ended(2);
  ASSERT_TRUE(pair.RunUntil(2, 60));
  // Counted in whole transfers, of which a few are under way at either end.
  EXPECT_NEAR((pair.ended(1) - one) / (pair.ended(2) - other), 3, 0.2);
}

// Whichever end made the connection.
TEST(ExchangeSharesOverUcx, HaveShortQueuesInTheKernel) {
  const std::set<int> others = TcpSockets(SocketKind::kConnected);
  Pair pair;
  pair.Open(1, {});
  ASSERT_TRUE(pair.RunUntil(1, 5));
  std::size_t count = 0;
  for (const int fd : TcpSockets(SocketKind::kConnected)) {
    if (others.contains(fd)) continue;
    int unsent_max = 0;
    socklen_t size = sizeof(unsent_max);
    ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_max, &size), 0);
    EXPECT_EQ(unsent_max, kUnsentBytesMax);
    ++count;
  }
  EXPECT_GE(count, 2U);
}

TEST(ExchangeSharesOverUcx, GiveTheBetterClassNearlyAll) {
  Pair pair;
  pair.Open(1, {.weight = 1, .priority = 1});
  pair.Open(2, {});
  ASSERT_TRUE(pair.RunUntil(1, 50));
  EXPECT_LT(pair.ended(2), 5);
}

}  // namespace
}  // namespace headrace::transport
