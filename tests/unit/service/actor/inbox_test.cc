// The inbox of an actor: order, limit, waking, from one thread and from many.
#include "service/actor/inbox.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace headrace::service {
namespace {

class CountingWakeable final : public Wakeable {
 public:
  void Wake() override { wakes.fetch_add(1); }
  std::atomic<int> wakes = 0;
};

TEST(Inbox, HandsOverMessagesInTheirOrderAndOnce) {
  CountingWakeable owner;
  Inbox<int> inbox(owner);
  EXPECT_TRUE(inbox.Empty());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(inbox.Send(int{i}));
  EXPECT_FALSE(inbox.Empty());
  EXPECT_EQ(owner.wakes.load(), 5);
  std::vector<int> taken{99};
  inbox.PopAll(taken);
  EXPECT_EQ(taken, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(inbox.Empty());
  inbox.PopAll(taken);
  EXPECT_TRUE(taken.empty());
}

TEST(Inbox, DoesNotTakeMoreThanItHasRoomFor) {
  CountingWakeable owner;
  Inbox<std::unique_ptr<int>> inbox(owner);
  for (std::size_t i = 0; i < kInboxMax; ++i) EXPECT_TRUE(inbox.Send(std::make_unique<int>(1)));
  EXPECT_FALSE(inbox.Send(nullptr));
  std::vector<std::unique_ptr<int>> taken;
  inbox.PopAll(taken);
  EXPECT_EQ(taken.size(), kInboxMax);
  EXPECT_TRUE(inbox.Send(nullptr));
}

TEST(Inbox, KeepsTheOrderOfEachOfManySenders) {
  constexpr int kSenders = 4;
  constexpr int kMessages = 5000;
  CountingWakeable owner;
  Inbox<std::pair<int, int>> inbox(owner);
  std::vector<std::jthread> senders;
  for (int sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&inbox, sender] {
      for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(inbox.Send({sender, i}));
    });
  }
  std::vector<int> next(kSenders, 0);
  std::vector<std::pair<int, int>> taken;
  for (int count = 0; count < kSenders * kMessages;) {
    inbox.PopAll(taken);
    for (const auto& [sender, i] : taken) EXPECT_EQ(i, next[static_cast<std::size_t>(sender)]++);
    count += static_cast<int>(taken.size());
    if (taken.empty()) std::this_thread::yield();
  }
  EXPECT_TRUE(inbox.Empty());
}

}  // namespace
}  // namespace headrace::service
