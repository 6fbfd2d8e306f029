#include "service/loop/loop_inbox.h"
#include "service/rpc/messages.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <thread>
#include <vector>

namespace headrace::service {
namespace {

bool IsReadable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(LoopInboxTest, IsReadableWhileItHoldsMessages) {
  const auto inbox = LoopInbox<RpcMessage>::Create().value();
  std::vector<RpcMessage> taken;
  EXPECT_FALSE(IsReadable(inbox->event_fd()));
  ASSERT_TRUE(inbox->Send(Pong{1}));
  ASSERT_TRUE(inbox->Send(Pong{2}));
  EXPECT_TRUE(IsReadable(inbox->event_fd()));
  inbox->PopAll(taken);
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(std::get<Pong>(taken[1]).token, 2U);
  EXPECT_FALSE(IsReadable(inbox->event_fd()));
}

TEST(LoopInboxTest, RefusesMoreThanItsBound) {
  const auto inbox = LoopInbox<RpcMessage>::Create().value();
  for (std::size_t i = 0; i < kInboxMax; ++i) ASSERT_TRUE(inbox->Send(Drained{}));
  EXPECT_FALSE(inbox->Send(Drained{}));
}

TEST(LoopInboxTest, LosesNoMessageOfSeveralThreads) {
  constexpr std::uint64_t kMessages = 10'000;
  const auto inbox = LoopInbox<RpcMessage>::Create().value();
  std::array<std::jthread, 3> senders;
  for (std::size_t sender = 0; sender < senders.size(); ++sender) {
    senders[sender] = std::jthread([&inbox, sender] {
      for (std::uint64_t i = 1; i <= kMessages; ++i) {
        while (!inbox->Send(Pong{sender << 32U | i})) std::this_thread::yield();
      }
    });
  }
  std::array<std::uint64_t, 3> last{};
  std::vector<RpcMessage> taken;
  std::uint64_t received = 0;
  while (received < senders.size() * kMessages) {
    // Sleeping forever on the eventfd is what shows a wake-up that was lost.
    pollfd entry{.fd = inbox->event_fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1) << "asleep after " << received;
    inbox->PopAll(taken);
    for (const RpcMessage& message : taken) {
      const std::uint64_t token = std::get<Pong>(message).token;
      EXPECT_EQ(token & UINT32_MAX, ++last.at(token >> 32U)) << "each sender's order is kept";
    }
    received += taken.size();
  }
}

}  // namespace
}  // namespace headrace::service
