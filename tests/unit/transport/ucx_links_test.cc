// Links: how they stay apart from each other, fail and end.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/open_descriptors.h"
#include "tests/unit/transport/ucx_pair.h"

namespace headrace::transport {
namespace {

// Shuts down all connections between sockets of this process.
void CutConnections() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.ss_family == AF_INET) shutdown(fd, SHUT_RDWR);
  }
}

class UcxLinks : public ::testing::Test {
 protected:
  // One message of each size from `from` to `to`, received to `target_`.
  void SendAndReceive(Side& from, LinkId link, Side& to, std::uint64_t key) {
    for (const std::size_t size : {std::size_t{100}, std::size_t{200'000}}) {
      const std::vector<std::byte> source = Pattern(size, static_cast<std::uint32_t>(key));
      const std::uint64_t token = ++token_;
      to.told.on_announced = [&](const Recorder::Announcement& announcement) {
        target_.assign(announcement.size, std::byte{});
        to.wire->Accept(announcement.arrival, target_.data(), announcement.header.position);
      };
      from.wire->Send(link, HeaderOf(key, token), source.data(), size, token);
      ASSERT_TRUE(DriveUntil(
          both_,
          [&] { return from.told.sent.contains(token) && to.told.received.contains(token); }))
          << "key " << key << " size " << size;
      EXPECT_EQ(from.told.sent[token], Code::kOk);
      EXPECT_EQ(to.told.received[token], Code::kOk);
      EXPECT_TRUE(target_ == source);
    }
  }

  Side a_{Loopback()};
  Side b_{Loopback()};
  std::vector<Side*> both_{&a_, &b_};
  std::vector<std::byte> target_;
  std::uint64_t token_ = 0;
};

// UCX alone would pair the first endpoint made here with the first made there.
TEST_F(UcxLinks, OfDifferentGroupsDoNotEndEachOther) {
  constexpr std::size_t kGroups = 6;
  std::vector<LinkId> from_a(kGroups);
  std::vector<LinkId> from_b(kGroups);
  for (std::size_t i = 0; i < kGroups; ++i) from_a[i] = a_.ConnectTo(b_, i + 1);
  for (std::size_t i = kGroups; i-- > 0;) from_b[i] = b_.ConnectTo(a_, i + 1);
  for (std::size_t i = 0; i < kGroups; ++i) {
    SendAndReceive(a_, from_a[i], b_, i + 1);
    SendAndReceive(b_, from_b[i], a_, i + 1);
  }
  for (std::size_t i = 0; i < kGroups; i += 2) {
    a_.wire->Close(from_a[i]);
    b_.wire->Close(from_b[i]);
    for (std::size_t j = 1; j < kGroups; j += 2) {
      SendAndReceive(a_, from_a[j], b_, j + 1);
      SendAndReceive(b_, from_b[j], a_, j + 1);
    }
  }
  EXPECT_TRUE(a_.told.failures.empty()) << a_.told.failures.begin()->second;
  EXPECT_TRUE(b_.told.failures.empty()) << b_.told.failures.begin()->second;
}

TEST_F(UcxLinks, LeaveTheMemoryOfAReceiveAloneOnceItsEndIsTold) {
  constexpr std::size_t kSize = 64 << 20;
  const LinkId from_a = a_.ConnectTo(b_, 9);
  const LinkId from_b = b_.ConnectTo(a_, 9);
  const std::vector<std::byte> source(kSize, std::byte{0x77});
  std::vector<std::byte> target(kSize);
  b_.told.on_announced = [&](const Recorder::Announcement& announcement) {
    b_.wire->Accept(announcement.arrival, target.data(), 1000);
  };
  a_.wire->Send(from_a, HeaderOf(9, 1), source.data(), kSize, 1001);
  ASSERT_TRUE(DriveUntil(both_, [&] { return target[1000] != std::byte{}; }));
  ASSERT_FALSE(b_.told.received.contains(1000)) << "too quick for this test";
  b_.wire->Close(from_b);
  ASSERT_TRUE(DriveUntil(
      {&b_}, [&] { return b_.told.received.contains(1000); }, kSoon));
  EXPECT_EQ(b_.told.received[1000], Code::kCancelled);
  std::ranges::fill(target, std::byte{});
  // The sender goes on and ends: nobody told it to stop.
  ASSERT_TRUE(DriveUntil(both_, [&] { return a_.told.sent.contains(1001); }));
  EXPECT_EQ(std::ranges::count(target, std::byte{}), static_cast<std::ptrdiff_t>(kSize));
  SendAndReceive(a_, from_a, b_, 9);
}

// Also those over which nothing was sent yet: a service once took such a link's end for that of
// every group that had sent nothing.
TEST_F(UcxLinks, GiveUpTheReceivesOfTheirOwnGroupOnly) {
  const LinkId first = a_.ConnectTo(b_, 1);
  const LinkId second = a_.ConnectTo(b_, 2);
  const LinkId back_first = b_.ConnectTo(a_, 1);
  ASSERT_NE(back_first, b_.ConnectTo(a_, 2));
  const std::vector<std::byte> source(32 << 20, std::byte{0x66});
  std::vector<std::byte> targets[2] = {std::vector<std::byte>(source.size()),
                                       std::vector<std::byte>(source.size())};
  b_.told.on_announced = [&](const Recorder::Announcement& announcement) {
    const std::uint64_t key = announcement.header.key;
    b_.wire->Accept(announcement.arrival, targets[key - 1].data(), 2000 + key);
  };
  a_.wire->Send(first, HeaderOf(1, 1), source.data(), source.size(), 1001);
  a_.wire->Send(second, HeaderOf(2, 1), source.data(), source.size(), 1002);
  ASSERT_TRUE(DriveUntil(
      both_, [&] { return targets[0][0] != std::byte{} && targets[1][0] != std::byte{}; }));
  b_.wire->Close(back_first);
  ASSERT_TRUE(DriveUntil(both_, [&] { return b_.told.received.contains(2002); }));
  EXPECT_EQ(b_.told.received[2002], Code::kOk);
  EXPECT_TRUE(targets[1] == source);
  if (b_.told.received[2001] != Code::kOk) {
    EXPECT_EQ(b_.told.received[2001], Code::kCancelled);
  }
}

TEST_F(UcxLinks, EndTheSendsOfAClosedLinkAndTheReceivesThere) {
  const LinkId link = a_.ConnectTo(b_);
  const std::vector<std::byte> source(64 << 20, std::byte{0x55});
  std::vector<std::byte> target(source.size());
  b_.told.on_announced = [&](const Recorder::Announcement& announcement) {
    if (announcement.header.position == 1) {
      b_.wire->Accept(announcement.arrival, target.data(), 1);
    }  // the second is left waiting
  };
  a_.wire->Send(link, HeaderOf(1, 1), source.data(), source.size(), 1);
  a_.wire->Send(link, HeaderOf(1, 2), source.data(), source.size(), 2);
  ASSERT_TRUE(DriveUntil(both_, [&] { return target[0] != std::byte{}; }));
  a_.wire->Close(link);
  ASSERT_TRUE(DriveUntil(
      {&a_}, [&] { return a_.told.sent.size() == 2; }, kSoon));
  EXPECT_EQ(a_.told.sent[1], Code::kCancelled);
  EXPECT_EQ(a_.told.sent[2], Code::kCancelled);
  ASSERT_TRUE(DriveUntil(both_, [&] { return b_.told.received.contains(1); }));
  EXPECT_EQ(b_.told.received[1], Code::kPeerLost);
  // What was announced may still be asked for, and ends.
  if (b_.told.announcements.size() == 2) {
    std::ranges::fill(target, std::byte{1});
    b_.wire->Accept(b_.told.announcements[1].arrival, target.data(), 2);
    ASSERT_TRUE(DriveUntil(both_, [&] { return b_.told.received.contains(2); }));
    EXPECT_EQ(b_.told.received[2], Code::kPeerLost);
  }
}

// What goes at once waits for room in the socket. When its link is closed meanwhile, its memory is
// no longer the wire's, and the receiver must never hear of it.
TEST_F(UcxLinks, SayNothingOfAMessageThatWasGivenUpBeforeItWasPacked) {
  constexpr std::size_t kSize = 64 << 10;
  constexpr std::uint64_t kCount = 1000;
  ASSERT_TRUE(a_.wire->IsEager(kSize));
  const LinkId link = a_.ConnectTo(b_, 9);
  const LinkId other = a_.ConnectTo(b_, 8);
  SendAndReceive(a_, link, b_, 9);
  SendAndReceive(a_, other, b_, 8);
  std::vector<std::byte> source(kSize, std::byte{0x55});
  const std::uint64_t first = token_ + 1;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    a_.wire->Send(link, HeaderOf(9, first + i), source.data(), kSize, first + i);
  }
  // The receiver does not read: the socket takes what it can.
  DriveUntil(
      {&a_}, [] { return false; }, kSecond / 5);
  ASSERT_FALSE(a_.told.sent.contains(first + kCount - 1)) << "the socket took it all";
  a_.wire->Close(link);
  ASSERT_TRUE(DriveUntil({&a_}, [&] { return a_.told.sent.contains(first + kCount - 1); }));
  EXPECT_EQ(a_.told.sent[first + kCount - 1], Code::kCancelled);
  std::ranges::fill(source, std::byte{0x11});
  std::uint64_t announced = 0;
  std::uint64_t wrong = 0;
  std::vector<std::byte> target(kSize);
  b_.told.on_announced = [&](const Recorder::Announcement& announcement) {
    ++announced;
    b_.wire->Accept(announcement.arrival, target.data(), announcement.header.position);
    wrong +=
        std::ranges::count(target, std::byte{0x55}) == static_cast<std::ptrdiff_t>(kSize) ? 0 : 1;
  };
  DriveUntil(
      both_, [] { return false; }, kSecond / 2);
  EXPECT_EQ(wrong, 0U) << "of " << announced;
  EXPECT_LT(announced, kCount);
  token_ += kCount;
  SendAndReceive(a_, other, b_, 8);
}

TEST_F(UcxLinks, FailWhenNobodyIsThere) {
  std::string address;
  {
    Side gone(Loopback());
    address = gone.wire->address();
  }
  const Result<LinkId> link = a_.wire->Connect(address, 1, 0);
  ASSERT_TRUE(link) << link.error().text();
  std::byte byte{};
  a_.wire->Send(*link, HeaderOf(1, 1), &byte, 1, 1);
  ASSERT_TRUE(DriveUntil(
      {&a_}, [&] { return a_.told.failures.contains(*link) && a_.told.sent.contains(1); }, kSoon));
  EXPECT_EQ(a_.told.sent[1], Code::kPeerLost);
  EXPECT_FALSE(a_.told.failures[*link].empty());
  a_.wire->Send(*link, HeaderOf(1, 2), &byte, 1, 2);
  ASSERT_TRUE(DriveUntil({&a_}, [&] { return a_.told.sent.contains(2); }));
  EXPECT_EQ(a_.told.sent[2], Code::kPeerLost);
  a_.wire->Close(*link);
}

// The descriptors of this process that are connected over IPv4.
std::set<int> ConnectedSockets() {
  std::set<int> connected;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.ss_family == AF_INET) connected.insert(fd);
  }
  return connected;
}

TEST_F(UcxLinks, AskTheOtherMachineForSignsOfLifeAtBothEnds) {
  // Tests before this one in the same process left their engines, and so their sockets, to its end.
  const std::set<int> before = ConnectedSockets();
  SendAndReceive(a_, a_.ConnectTo(b_), b_, 1);
  int ends = 0;
  for (const int fd : ConnectedSockets()) {
    if (before.contains(fd)) continue;
    ++ends;
    int on = 0;
    int idle_s = 0;
    socklen_t size = sizeof(on);
    getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size);
    getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &size);
    EXPECT_EQ(on, 1);
    EXPECT_EQ(idle_s, kKeepaliveSeconds);
  }
  EXPECT_EQ(ends, 2);
}

// What a cable that is pulled and put back looks like to both ends.
TEST_F(UcxLinks, OpenAgainAfterTheConnectionWasLost) {
  for (int round = 1; round <= 5; ++round) {
    const auto key = static_cast<std::uint64_t>(round);
    const LinkId to_b = a_.ConnectTo(b_, key);
    const LinkId to_a = b_.ConnectTo(a_, key);
    SendAndReceive(a_, to_b, b_, key);
    SendAndReceive(b_, to_a, a_, key);
    const std::vector<std::byte> source(8 << 20);
    std::vector<std::byte> target(source.size());
    b_.told.on_announced = [&](const Recorder::Announcement& announcement) {
      b_.wire->Accept(announcement.arrival, target.data(), 500 + key);
    };
    a_.wire->Send(to_b, HeaderOf(key, 1), source.data(), source.size(), 500 + key);
    ASSERT_TRUE(DriveUntil(both_, [&] { return b_.told.announcements.back().size > 1 << 20; }));
    CutConnections();
    ASSERT_TRUE(DriveUntil(both_,
                           [&] {
                             return a_.told.failures.contains(to_b) &&
                                    b_.told.failures.contains(to_a) &&
                                    a_.told.sent.contains(500 + key) &&
                                    b_.told.received.contains(500 + key);
                           }))
        << "round " << round;
    EXPECT_EQ(a_.told.sent[500 + key], Code::kPeerLost);
    EXPECT_EQ(b_.told.received[500 + key], Code::kPeerLost);
    a_.wire->Close(to_b);
    b_.wire->Close(to_a);
  }
}

TEST_F(UcxLinks, LeaveNoDescriptorsBehind) {
  const auto round = [this] {
    const LinkId to_b = a_.ConnectTo(b_);
    const LinkId to_a = b_.ConnectTo(a_);
    SendAndReceive(a_, to_b, b_, 1);
    SendAndReceive(b_, to_a, a_, 1);
    a_.wire->Close(to_b);
    b_.wire->Close(to_a);
    for (int i = 0; i < 10; ++i) {
      a_.wire->Progress(a_.told);
      b_.wire->Progress(b_.told);
    }
  };
  for (int i = 0; i < 20; ++i) round();
  const std::size_t before = OpenDescriptors();
  for (int i = 0; i < 1000; ++i) round();
  DriveUntil(both_, [&] { return OpenDescriptors() <= before; });
  EXPECT_LE(OpenDescriptors(), before);
}

TEST(UcxSignals, BelongToTheProgram) {
  Side side(Loopback());
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP}) {
    struct sigaction action {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    // A sanitizer's, perhaps; not UCX's.
    Dl_info owner{};
    if (dladdr(reinterpret_cast<void*>(action.sa_handler), &owner) == 0) continue;
    EXPECT_EQ(std::string(owner.dli_fname).find("libuc"), std::string::npos) << owner.dli_fname;
  }
}

}  // namespace
}  // namespace headrace::transport
