#include "client/lib/door.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace headrace::client {
namespace {

TEST(Door, LetsInWhileItIsOpenOnly) {
  Door door;
  EXPECT_TRUE(Inside(door));
  door.Close();
  EXPECT_FALSE(Inside(door));
  door.Open();
  EXPECT_TRUE(Inside(door));
}

TEST(Door, ClosesWhenAllHaveLeft) {
  Door door;
  ASSERT_TRUE(door.Enter());
  std::atomic<bool> closed = false;
  std::thread closing([&] {
    door.Close();
    closed = true;
  });
  // From some moment on nobody gets in, and it still waits for who is inside.
  while (door.Enter()) door.Leave();
  EXPECT_FALSE(closed);
  door.Leave();
  closing.join();
  EXPECT_FALSE(door.Enter());
}

TEST(Door, WhoeverWaitsGetsInWhenItOpens) {
  Door door;
  door.Close();
  std::atomic<bool> entered = false;
  std::thread waiting([&] {
    door.EnterWhenOpen();
    entered = true;
    door.Leave();
  });
  EXPECT_FALSE(entered);
  door.Open();
  waiting.join();
  EXPECT_TRUE(entered);
}

// What Close's caller changes, nobody inside sees half of.
TEST(Door, KeepsThoseInsideApartFromWhoCloses) {
  constexpr int kRounds = 2000;
  Door door;
  int one = 0;
  int other = 0;
  std::atomic<bool> done = false;
  std::atomic<int> torn = 0;
  std::vector<std::thread> visitors;
  for (int i = 0; i < 3; ++i) {
    visitors.emplace_back([&] {
      while (!done) {
        if (const Inside inside(door); inside && one != other) ++torn;
        door.EnterWhenOpen();
        if (one != other) ++torn;
        door.Leave();
      }
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    door.Close();
    ++one;
    ++other;
    door.Open();
  }
  done = true;
  for (std::thread& visitor : visitors) visitor.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(one, kRounds);
}

}  // namespace
}  // namespace headrace::client
