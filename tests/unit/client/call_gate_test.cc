#include "client/lib/call_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace headrace::client {
namespace {

TEST(CallGate, LetsInWhileItIsOpenOnly) {
  CallGate gate;
  EXPECT_TRUE(CallScope(gate));
  gate.Close();
  EXPECT_FALSE(CallScope(gate));
  gate.Open();
  EXPECT_TRUE(CallScope(gate));
}

TEST(CallGate, ClosesWhenAllHaveLeft) {
  CallGate gate;
  ASSERT_TRUE(gate.Enter());
  std::atomic<bool> closed = false;
  std::thread closing([&] {
    gate.Close();
    closed = true;
  });
  // From some moment on nobody gets in, and it still waits for who is inside.
  while (gate.Enter()) gate.Leave();
  EXPECT_FALSE(closed);
  gate.Leave();
  closing.join();
  EXPECT_FALSE(gate.Enter());
}

TEST(CallGate, WhoeverWaitsGetsInWhenItOpens) {
  CallGate gate;
  gate.Close();
  std::atomic<bool> entered = false;
  std::thread waiting([&] {
    gate.EnterWhenOpen();
    entered = true;
    gate.Leave();
  });
  EXPECT_FALSE(entered);
  gate.Open();
  waiting.join();
  EXPECT_TRUE(entered);
}

// What Close's caller changes, nobody inside sees half of.
TEST(CallGate, KeepsThoseInsideApartFromWhoCloses) {
  constexpr int kRounds = 2000;
  CallGate gate;
  int one = 0;
  int other = 0;
  std::atomic<bool> done = false;
  std::atomic<int> torn = 0;
  std::vector<std::thread> visitors;
  for (int i = 0; i < 3; ++i) {
    visitors.emplace_back([&] {
      while (!done) {
        if (const CallScope inside(gate); inside && one != other) ++torn;
        gate.EnterWhenOpen();
        if (one != other) ++torn;
        gate.Leave();
      }
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    gate.Close();
    ++one;
    ++other;
    gate.Open();
  }
  done = true;
  for (std::thread& visitor : visitors) visitor.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(one, kRounds);
}

}  // namespace
}  // namespace headrace::client
