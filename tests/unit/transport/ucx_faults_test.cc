// What a wire does when the process at the other end is killed, stops, or is a stranger.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ipc/base/fd.h"
#include "tests/unit/transport/ucx_pair.h"

namespace headrace::transport {
namespace {

// ucx_peer in a process of its own, ended with this object however it goes.
class PeerProcess {
 public:
  PeerProcess() {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) abort();
    UniqueFd child_in(in[0]);
    to_.reset(in[1]);
    from_.reset(out[0]);
    UniqueFd child_out(out[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, child_in.get(), 0);
    posix_spawn_file_actions_adddup2(&actions, child_out.get(), 1);
    std::string program = UCX_PEER;
    std::array<char*, 2> arguments{program.data(), nullptr};
    const int failed =
        posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) pid_ = 0;
  }
  ~PeerProcess() { Kill(); }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void Signal(int signal) const { kill(pid_, signal); }
  void Kill() {
    if (pid_ == 0) return;
    Signal(SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  pid_t pid() const { return pid_; }

  std::string ReadAddress() const {
    std::string bytes;
    for (std::string pair; ReadByte(pair) && pair != "\n";) {
      ReadByte(pair);
      bytes.push_back(static_cast<char>(std::stoi(pair, nullptr, 16)));
      pair.clear();
    }
    return bytes;
  }
  void TellAddress(const std::string& address) const {
    std::string line;
    for (const char byte : address) {
      constexpr char kDigits[] = "0123456789abcdef";
      line += kDigits[static_cast<unsigned char>(byte) >> 4];
      line += kDigits[static_cast<unsigned char>(byte) & 15];
    }
    line += "\n";
    ASSERT_EQ(write(to_.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }

 private:
  bool ReadByte(std::string& to) const {
    char byte = 0;
    if (read(from_.get(), &byte, 1) != 1) return false;
    to += byte;
    return true;
  }

  pid_t pid_ = 0;
  UniqueFd to_;
  UniqueFd from_;
};

class UcxFaults : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = 64 << 20;

  // Messages flow in both directions when this returns.
  void Begin() {
    link_ = *here_.wire->Connect(peer_.ReadAddress(), 1, 0);
    peer_.TellAddress(here_.wire->address());
    here_.told.on_announced = [this](const Recorder::Announcement& announcement) {
      here_.wire->Accept(announcement.arrival, target_.data(), ++received_token_);
    };
    for (std::uint64_t token = 1; token <= kSends; ++token) {
      // The last one is never accepted.
      const std::uint64_t position = token == kSends ? UINT64_MAX : token;
      here_.wire->Send(link_, HeaderOf(1, position), source_.data(), kSize, token);
    }
    ASSERT_TRUE(DriveUntil(sides_, [this] {
      return !here_.told.sent.empty() && !here_.told.received.empty() &&
             received_token_ > here_.told.received.size();
    }));
  }
  bool AllEnded() const {
    return here_.told.sent.size() == kSends && here_.told.received.size() == received_token_;
  }

  static constexpr std::uint64_t kSends = 4;
  PeerProcess peer_;
  Side here_{Loopback()};
  std::vector<Side*> sides_{&here_};
  LinkId link_ = 0;
  std::vector<std::byte> source_ = std::vector<std::byte>(kSize, std::byte{0x33});
  std::vector<std::byte> target_ = std::vector<std::byte>(kSize);
  std::uint64_t received_token_ = 0;
};

TEST_F(UcxFaults, AKilledPeerEndsEverythingWithinASecond) {
  Begin();
  peer_.Kill();
  ASSERT_TRUE(DriveUntil(
      sides_, [this] { return AllEnded() && here_.told.failures.contains(link_); }, kSoon));
  EXPECT_EQ(here_.told.sent[kSends], Code::kPeerLost);
  // The last bytes of a receive may have come already.
  EXPECT_NE(here_.told.received[received_token_], Code::kCancelled);
  EXPECT_NE(here_.told.failures[link_].find("UCX says"), std::string::npos);
  here_.wire->Close(link_);
}

TEST_F(UcxFaults, AStoppedPeerDoesNotKeepAClosedLinkOpen) {
  Begin();
  peer_.Signal(SIGSTOP);
  // Until nothing moves any more: the sockets' buffers are full.
  DriveUntil(
      sides_, [this] { return AllEnded(); }, 300 * kMillisecond);
  ASSERT_FALSE(AllEnded());
  here_.wire->Close(link_);
  ASSERT_TRUE(DriveUntil(
      sides_, [this] { return AllEnded(); }, kSoon));
  EXPECT_EQ(here_.told.sent[kSends], Code::kCancelled);
  EXPECT_NE(here_.told.received[received_token_], Code::kPeerLost);
  std::ranges::fill(target_, std::byte{});
  peer_.Signal(SIGCONT);
  here_.told.on_announced = [this](const Recorder::Announcement& announcement) {
    here_.wire->Drop(announcement.arrival);
  };
  DriveUntil(
      sides_, [] { return false; }, 300 * kMillisecond);
  EXPECT_EQ(std::ranges::count(target_, std::byte{}), static_cast<std::ptrdiff_t>(kSize));
}

// TCP ports on which this process listens.
std::vector<std::uint16_t> ListeningPorts() {
  std::vector<std::uint16_t> ports;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_in address{};
    size = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family == AF_INET) ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

UniqueFd ConnectTo(std::uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) fd.reset();
  return fd;
}

TEST_F(UcxFaults, GarbageOnItsPortsIsNothingToTheWire) {
  Side other(Loopback());
  const std::vector<Side*> both = {&here_, &other};
  const LinkId link = here_.ConnectTo(other);
  const std::vector<std::uint16_t> ports = ListeningPorts();
  ASSERT_GE(ports.size(), 2U);
  std::vector<UniqueFd> strangers;
  for (const std::uint16_t port : ports) {
    for (const std::string& garbage :
         {std::string("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), std::string(100'000, '\xff'),
          std::string(100'000, '\0'), std::string("x"), std::string()}) {
      UniqueFd stranger = ConnectTo(port);
      ASSERT_TRUE(stranger) << port;
      const ssize_t written = send(stranger.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
      EXPECT_GE(written, garbage.empty() ? 0 : 1);
      if (garbage.size() != 1) continue;  // closed at once
      strangers.push_back(std::move(stranger));
    }
  }
  other.told.on_announced = [&](const Recorder::Announcement& announcement) {
    other.wire->Accept(announcement.arrival, target_.data(), announcement.header.position);
  };
  for (std::uint64_t token = 1; token <= 20; ++token) {
    here_.wire->Send(link, HeaderOf(1, token), source_.data(), 100'000, token);
    ASSERT_TRUE(DriveUntil(both, [&] { return other.told.received.contains(token); }));
    EXPECT_EQ(other.told.received[token], Code::kOk);
  }
  EXPECT_EQ(other.told.announcements.size(), 20U);
  EXPECT_EQ(other.wire->dropped_count(), 0U);
}

}  // namespace
}  // namespace headrace::transport
